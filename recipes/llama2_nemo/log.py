"""What a run tells about itself: metrics.jsonl, a line on the screen, TensorBoard."""

import sys
from typing import Any

import torch

import resume
from config import Config

# Dense bf16 peaks without sparsity, from NVIDIA's data sheets; the first name that fits counts.
PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
}


class Logger:
    """Written by rank 0 alone; the other ranks may call it too."""

    def __init__(
        self,
        run: resume.Run,
        config: Config,
        device: torch.device,
        resumed_step: int,
        flops_per_token: int,
    ) -> None:
        self.run, self.device, self.resumed_step = run, device, resumed_step
        self.wants_board = config.log.tensorboard and run.rank == 0
        self.board: Any = None
        self.step_tokens = config.train.global_batch * config.train.seq_len
        self.flops = flops_per_token
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self.peak = next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)

    def log(self, metrics: dict[str, Any]) -> None:
        """Add what follows from the time, then write."""
        if self.run.rank != 0:
            return
        rate = self.step_tokens / metrics["step_s"]
        possible = self.run.world_size * self.peak if self.peak else None
        metrics["tokens_per_s"] = rate
        metrics["mfu"] = rate * self.flops / possible if possible else None
        if self.device.type == "cuda":
            metrics["memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        self.run.log_metrics(metrics)
        line = "step {step} loss {loss:.4f} {tokens_per_s:.0f} tokens/s"
        print(line.format(**metrics), flush=True)
        if self.wants_board and self.board is None:
            self.board = self.open_board()
        if self.board:
            for key, value in metrics.items():
                if isinstance(value, float):
                    self.board.add_scalar(key, value, metrics["step"])

    def open_board(self) -> Any:
        """Only after the first training step: importing TensorBoard would delay it."""
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError:
            self.wants_board = False
            print("tensorboard is not installed: metrics.jsonl only", file=sys.stderr)
            return None
        folder = self.run.dir / "tensorboard"
        # Steps after the checkpoint are trained again: their old points are purged.
        return SummaryWriter(str(folder), purge_step=self.resumed_step + 1)

    def close(self) -> None:
        """Write what is still in memory."""
        if self.board:
            self.board.close()
