"""Stand-in for SGLang's GPU kernels, which releases up to 0.5.12 import without asking."""
