"""NeMo's strategy where launching, joining, loading and leaving are the contract's business."""

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.distrib_optimizer import HAVE_APEX_OR_TE
from nemo import lightning as nl
from nemo.lightning.pytorch.strategies.utils import init_model_parallel, setup_parallel_ranks

import resume
import weights
from config import Config
from environment import Started
from hf_weights import Weights
from model import Kernels, uses_bf16


class Strategy(nl.MegatronStrategy):  # type: ignore[misc]  # untyped
    """NeMo's, with the recipe's initial weights, and an optimizer that resumes bit for bit."""

    def start(
        self, config: Config, run: resume.Run, saved_step: int, given: Weights | None
    ) -> None:
        """What the methods below need. Not arguments of the constructor: NeMo copies those."""
        self.recipe, self.fresh, self.saved_step = config, run.resume is None, saved_step
        self.given = given

    def setup_distributed(self) -> None:
        """Only NeMo's own groups: train.py has connected the ranks, with a time-out."""
        setup_parallel_ranks(self)
        self.set_world_ranks()
        init_model_parallel(self.model)

    def init_model_parallel(self) -> None:
        """The weights are set before anything copies them."""
        if self.fresh:
            drawn = weights.initial(self.recipe.model, self.recipe.train.seed)
            source = drawn if self.given is None else self.given.rows
            weights.fill(list(self.megatron_parallel), self.recipe.model, source)
        super().init_model_parallel()

    def setup_optimizers(self, trainer: Any) -> None:
        """Create the state of torch's AdamW, zero as AdamW itself would.

        Without it the library cannot describe an optimizer that has not made a step
        (optimizer/distrib_optimizer.py, "assert len(steps) == 1"). Fused optimizers need nothing.
        """
        super().setup_optimizers(trainer)
        for part in self.parts():
            for weight in each_weight(part) if not HAVE_APEX_OR_TE else ():
                slots = part.optimizer.state[weight]
                slots["step"] = torch.zeros(())
                slots["exp_avg"] = torch.zeros_like(weight)
                slots["exp_avg_sq"] = torch.zeros_like(weight)

    def parts(self) -> list[Any]:
        """Megatron-Core's optimizers: one, or one more for experts."""
        whole = self.optimizers[0].mcore_optimizer
        return list(getattr(whole, "chained_optimizers", [whole]))

    @torch.no_grad()
    def load_optimizer_state_dict(
        self,
        checkpoint: Any,
        selective_restore: bool = False,  # noqa: ARG002  (NeMo's signature)
    ) -> None:
        """Fill AdamW's state in place, and count its updates anew.

        Not the library's own: with torch's AdamW it looks for a "step" that no checkpoint holds,
        and gives all weights one and the same step, which then counts them all.
        """
        (states,) = checkpoint["optimizer"]
        parts = self.parts()
        for number, part in enumerate(parts):
            state = states if len(parts) == 1 else states[number]
            for slots in part.optimizer.state.values():
                slots.pop("step", None)
            form = state["param_state_sharding_type"]
            getattr(part, f"load_parameter_state_from_{form}")(state["param_state"])
            set_step(part, self.saved_step)

    def teardown(self) -> None:
        """Nothing: the weights are still needed, and then the process ends.

        Lightning would move them to host memory.
        """


def each_weight(part: Any) -> list[torch.Tensor]:
    """The weights that one of Megatron-Core's optimizers updates on this rank."""
    return [weight for group in part.optimizer.param_groups for weight in group["params"]]


def set_step(part: Any, step: int) -> None:
    """AdamW counts updates, one for each training step: fused ones by group, torch's by weight."""
    if HAVE_APEX_OR_TE:
        for group in part.optimizer.param_groups:
            group["step"] = step
        return
    for weight in each_weight(part):
        part.optimizer.state[weight]["step"] = torch.tensor(float(step))


def make_trainer(
    run: resume.Run, config: Config, kernels: Kernels, saved_step: int, given: Weights | None
) -> nl.Trainer:
    """NeMo's trainer and strategy; what the contract decides is off."""
    parallel, checkpoint = config.parallel, config.checkpoint
    strategy = Strategy(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.interleave
        if parallel.interleave > 1
        else None,
        context_parallel_size=parallel.context,
        sequence_parallel=parallel.sequence and parallel.tensor > 1,
        ddp=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=True,
            overlap_grad_reduce=parallel.overlap,
            overlap_param_gather=parallel.overlap,
        ),
        ckpt_async_save=checkpoint.mode == "async",
        ckpt_optim_fully_reshardable=checkpoint.format == "fully_reshardable",
        ckpt_parallel_load=False,  # on GPUs it gathers all of AdamW's state, unsharded
        ckpt_parallel_save_within_dp=True,
        use_gloo_process_groups=False,
        replace_progress_bar=False,
    )
    strategy.start(config, run, saved_step, given)
    local = run.local_rank % torch.cuda.device_count() if kernels.on_gpu else None
    return nl.Trainer(
        accelerator="cpu" if local is None else "gpu",
        devices=1 if local is None else [local],
        num_nodes=run.world_size,  # see environment.py
        strategy=strategy,
        plugins=[
            nl.MegatronMixedPrecision("bf16-mixed" if uses_bf16(config, kernels) else "32"),
            Started(run),
        ],
        max_epochs=-1,
        max_steps=config.train.steps,
        limit_val_batches=0,  # `Contract.evaluate` does it
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,  # NeMo's gathers on rank 0 alone, and hangs gloo
        enable_model_summary=False,
        log_every_n_steps=1,
    )


def make_optimizer(config: Config, kernels: Kernels) -> nl.MegatronOptimizerModule:
    """AdamW with its state spread over the data parallel ranks; norms do not decay."""
    options, bf16 = config.optim, uses_bf16(config, kernels)
    return nl.MegatronOptimizerModule(
        config=OptimizerConfig(
            optimizer="adam",
            lr=options.lr,  # train.py sets it before every training step
            adam_beta1=options.beta1,
            adam_beta2=options.beta2,
            adam_eps=options.eps,
            weight_decay=options.weight_decay,
            clip_grad=options.clip_norm,
            bf16=bf16,
            params_dtype=torch.bfloat16 if bf16 else torch.float32,
            use_distributed_optimizer=True,
            overlap_param_gather=config.parallel.overlap,
        )
    )
