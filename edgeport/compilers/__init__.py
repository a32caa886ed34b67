"""The vendors' compilers, one file each, and predictions where a compiler can't be asked."""
