"""The methods: one paper, one file, those we implement and those we compare with."""
