"""What tests of several rooms share: models, plug-ins, oracles, processes."""
