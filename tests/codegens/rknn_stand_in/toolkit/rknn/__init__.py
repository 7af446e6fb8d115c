"""A stand-in for rknn-toolkit2 in tests: see `api.py`."""
