"""The notebook extension: `%load_ext memfit`."""
