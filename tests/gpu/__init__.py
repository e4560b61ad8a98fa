"""Tests of the CUDA kernels. test_gpu.py runs them in a child process with time limits."""
