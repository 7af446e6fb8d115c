"""Telling the user what was decided: one JSON document, and the text made of it."""
