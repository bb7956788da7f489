"""The methods: one file per paper. Other files hold what several methods use."""
