"""Methods of the papers that Coterie implements: one paper, one file."""
