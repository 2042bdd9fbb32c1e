"""A test kit for methods: the conformance suite and its tiny problems."""
