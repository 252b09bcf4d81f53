"""Training that survives out-of-memory errors: carries out in torch the decisions of
`memfit._core.Controller`.
"""
