//! Families of kernels by their names, and how long their launches take.
