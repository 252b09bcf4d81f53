"""Training that does not die: what calls torch for the decisions of `memfit._core.Controller`."""
