"""Benchmarks of dash and its peers: run `python -m bench.bench_attention --help`."""
