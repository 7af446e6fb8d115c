"""The strategies that come with byoc, found by entry point as an outsider's are."""
