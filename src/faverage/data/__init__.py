"""Benchmarks of few-shot class-incremental learning: ``load_benchmark(name)`` gives images, labels and sessions."""

from faverage.data.benchmark import Benchmark, DataError, Session, draw_shots
from faverage.data.datasets import (  # noqa: F401 - they register their benchmarks
    cifar100,
    cub200,
    digits,
    fgvc_aircraft,
    folder,
    mini_imagenet,
    tiered_imagenet,
)
from faverage.data.registry import benchmark_names, load_benchmark, register_benchmark

__all__ = ["Benchmark", "DataError", "Session", "benchmark_names", "draw_shots", "load_benchmark", "register_benchmark"]
