"""The report of a partitioned model: a JSON document, and the text made of it."""
