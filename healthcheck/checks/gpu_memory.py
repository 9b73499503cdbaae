"""GPU memory: errors that were not corrected, and whether the GPU has spares left to hide more.

A100 and later replace bad rows (row remapping) when they are reset; V100 and T4 retire pages. Both
kinds say when they wait for a reset and when nothing is left, which is the maker's own limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.each_gpu import each_gpu, flag, number, on
from healthcheck.facts import Facts
from healthcheck.finding import Result
from healthcheck.read.gpu import Gpu
from healthcheck.registry import check

_ROWS_REPLACED = 512  # in total; the maker takes such a GPU back
_PAGES_MANY, _PAGES_MOST = 60, 64


@check("gpu_ecc")
def gpu_ecc(facts: Facts) -> Iterator[Result]:
    """No uncorrected memory error since the driver was loaded."""
    fields = ("ecc.errors.uncorrected.volatile.total",)
    yield from each_gpu(facts, fields, _ecc, "no GPU had a memory error that was not corrected")


def _ecc(gpu: Gpu, errors: str) -> Iterator[Result]:
    count = number(errors, "memory errors")
    if count > 0:
        yield on(gpu, "FAIL", f"has {count} uncorrected memory errors")


@check("gpu_ecc_mode", when=("gate", "periodic", "return", "deep"))
def gpu_ecc_mode(facts: Facts) -> Iterator[Result]:
    """ECC is on, and stays on after the next reboot; `ecc: false` in the profile allows it off."""
    if facts.profile.ecc is False:
        yield Result("SKIP", "may have ECC off by its profile")
        return
    fields = ("ecc.mode.current", "ecc.mode.pending")
    yield from each_gpu(facts, fields, _ecc_mode, "ECC is on")


def _ecc_mode(gpu: Gpu, current: str, pending: str) -> Iterator[Result]:
    now, then = flag(current, "ECC mode"), flag(pending, "pending ECC mode")
    if not now:
        yield on(gpu, "WARN", "has ECC off")
    elif not then:
        yield on(gpu, "WARN", "will have ECC off after the next reboot")


@check("gpu_sram")
def gpu_sram(facts: Facts) -> Iterator[Result]:
    """Fewer uncorrected errors in on-chip memory than the maker's limit; nothing replaces that."""
    fields = ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",)
    yield from each_gpu(facts, fields, _sram, "on-chip memory is below its limit of errors")


def _sram(gpu: Gpu, exceeded: str) -> Iterator[Result]:
    if flag(exceeded, "SRAM threshold exceeded"):
        yield on(gpu, "FAIL", "has more errors in on-chip memory (SRAM) than the maker allows")


@check("gpu_row_remap")
def gpu_row_remap(facts: Facts) -> Iterator[Result]:
    """No bad memory row waits for a reset to be replaced, and replacing has not failed."""
    fields = ("remapped_rows.pending", "remapped_rows.failure")
    yield from each_gpu(facts, fields, _row_remap, "no memory row waits to be replaced")


def _row_remap(gpu: Gpu, pending: str, failure: str) -> Iterator[Result]:
    if flag(failure, "row remap failure"):
        yield on(gpu, "FAIL", "failed to replace a bad memory row", rule="gpu_row_remap.failed")
    elif flag(pending, "row remap pending"):
        yield on(gpu, "FAIL", "has a bad memory row that a reset would replace")


@check("gpu_row_reserve", when=("gate", "periodic", "return", "deep"))
def gpu_row_reserve(facts: Facts) -> Iterator[Result]:
    """Spare memory rows are left in every bank."""
    fields = ("remapped_rows.histogram.none", "remapped_rows.uncorrectable")
    yield from each_gpu(facts, fields, _row_reserve, "spare memory rows are left")


def _row_reserve(gpu: Gpu, empty: str, replaced: str) -> Iterator[Result]:
    banks, rows = number(empty, "banks without spare rows"), number(replaced, "replaced rows")
    if rows >= _ROWS_REPLACED:
        yield on(gpu, "FAIL", f"has replaced {rows} bad memory rows, limit {_ROWS_REPLACED}")
    elif banks > 0:
        yield on(gpu, "WARN", f"has no spare memory row left in {banks} banks")


@check("gpu_pages")
def gpu_pages(facts: Facts) -> Iterator[Result]:
    """Memory pages that are out of use (V100, T4): few, and none waits for a reboot."""
    fields = (
        "retired_pages.single_bit_ecc.count",
        "retired_pages.double_bit.count",
        "retired_pages.pending",
    )
    yield from each_gpu(facts, fields, _pages, "no memory page waits to be retired")


def _pages(gpu: Gpu, single: str, double: str, pending: str) -> Iterator[Result]:
    total = number(single, "retired pages") + number(double, "retired pages")
    if total >= _PAGES_MOST:
        what = f"has {total} retired memory pages, limit {_PAGES_MOST}"
        yield on(gpu, "FAIL", what, rule="gpu_pages.many")
    elif flag(pending, "pending page retirement"):
        yield on(gpu, "FAIL", "has a bad memory page that a reboot would retire")
    elif total >= _PAGES_MANY:
        yield on(gpu, "WARN", f"has {total} retired memory pages, limit {_PAGES_MOST}")
