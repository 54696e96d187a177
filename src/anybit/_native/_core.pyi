from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

descriptions: dict[str, dict[str, Any]]
xla_handlers: dict[str, Any]
program: dict[str, Any]

class Network:
    def __init__(
        self,
        words: npt.NDArray[np.int64],
        bytes: npt.NDArray[np.uint8],
        integers: npt.NDArray[np.int32],
        floats: npt.NDArray[np.float32],
        /,
    ) -> None: ...
    def run(self, inputs: list[npt.NDArray[np.float32]], /) -> list[npt.NDArray[np.float32]]: ...
    def run_timed(
        self, inputs: list[npt.NDArray[np.float32]], /
    ) -> tuple[list[npt.NDArray[np.float32]], list[float]]: ...
    def describe(self) -> dict[str, Any]: ...

class Call:
    def __init__(
        self, network: Network, name: str, otherwise: Callable[..., dict[str, Any]], /
    ) -> None: ...
    def run(self, *args: Any, **kwargs: Any) -> Any: ...

def count_values(
    arrays: list[npt.NDArray[np.float32]],
    axes: list[int | None],
    counts: list[npt.NDArray[np.int64]],
    extremes: list[npt.NDArray[np.float32] | None],
    /,
) -> list[tuple[float, float]]: ...
def squared_difference(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], /) -> float: ...
def add_product(
    sums: npt.NDArray[np.float64],
    a: npt.NDArray[np.float64],
    b: npt.NDArray[np.float64],
    subtract: bool,
    /,
) -> None: ...
def plain_tensors(
    types: tuple[type, ...],
    keys_of: Callable[..., Any],
    keys_of_thread: Callable[..., Any],
    as_bits: Callable[..., Any],
    own: list[int],
    watched: tuple[Callable[..., Any], ...],
    modes: Any,
    level: str,
    /,
) -> Callable[[tuple[Any, ...]], tuple[Any, ...] | None]: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def limit_threads(count: int) -> int: ...
def may_spin(threads: int) -> bool: ...
def read_cpu_quota(root: str) -> float | None: ...
def find_processors(quota: float | None) -> tuple[int, int]: ...
def isa() -> str: ...
def isa_for(elements: int) -> str: ...
def set_isa(name: str) -> None: ...
def __getattr__(name: str) -> Callable[..., Any]: ...
