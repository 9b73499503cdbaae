"""Which library carries the collectives: nccl, gloo, or one that a plug-in registers.

A plug-in is a module that calls torch.distributed.Backend.register_backend when it is imported, as
SageMaker's SMDDP does:

    python train.py dist.plugin=smdistributed.dataparallel.torch.torch_smddp dist.backend=smddp
"""

import difflib
import importlib

from torch.distributed import Backend, is_nccl_available

from options import bad


def backend_name(wanted: str, plugin: str | None, *, on_gpu: bool) -> str:
    """The name for init_process_group, after importing the plug-in.

    Args:
        wanted: "auto" (nccl on GPUs, gloo on CPUs) or a name that torch knows then.
        plugin: module to import first; None: none.
        on_gpu: whether tensors are on GPUs.

    Raises:
        Stop: no such module, or nobody registered that name (exit code 78).
    """
    if plugin is not None:
        try:
            importlib.import_module(plugin)
        except ImportError as error:
            fix = "install it on all nodes, or in the image"
            raise bad("dist.plugin", f"cannot import {plugin}: {error}", fix) from None
    if wanted == "auto":
        return "nccl" if on_gpu else "gloo"
    known = [name for name in Backend.backend_list if name != Backend.UNDEFINED]
    if wanted not in known:
        near = difflib.get_close_matches(wanted, ["auto", *known], n=1, cutoff=0.6)
        hint = f"did you mean '{near[0]}'? Or " if near else ""
        fix = f"name the module that registers it in dist.plugin, or use one of {', '.join(known)}"
        raise bad("dist.backend", f"torch knows no '{wanted}'", hint + fix)
    if wanted == "nccl" and not (on_gpu and is_nccl_available()):
        raise bad("dist.backend", "nccl needs GPUs", "use auto or gloo")
    return wanted
