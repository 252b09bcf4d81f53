//! The Python module memfit._core: conversions only.
