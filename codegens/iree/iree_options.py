"""Options of the codegen `iree`, and IREE's flags for them."""

import platform
from dataclasses import dataclass, field
from typing import Literal

_TRIPLES = {
    "x86_64": "x86_64-unknown-linux-eabi-elf",
    "aarch64": "aarch64-unknown-linux-eabi-elf",
    "riscv64": "riscv64-unknown-linux-eabi-elf",
    "wasm32": "wasm32-unknown-unknown",
}
_MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}  # as other systems name them
_FEATURES = {"riscv64": "+m,+a,+f,+d,+c", "wasm32": "+simd128"}
_PROCESSORS = {"cuda": "sm_80", "vulkan": "vp_android_baseline_2022"}


@dataclass(frozen=True)
class IREEOptions:
    """Options of the codegen `iree`.

    `target` is what regions are compiled for; `host` is this computer with all that its processor can
    do. `processor` and `features` say more about a target: a CPU and its features by their names in
    LLVM, CUDA's architecture, Vulkan's target. With `threads` 1 a run keeps to the thread that calls;
    with 0 IREE starts as many as it likes. `level` is how hard the compiler tries. `im2col` computes
    convolutions as products of matrices.
    """

    target: Literal["host", "x86_64", "aarch64", "riscv64", "wasm32", "vulkan", "cuda", "vmvx"] = field(
        default="host", metadata={"help": "what to compile for; vmvx is IREE's interpreter"}
    )
    processor: str = field(
        default="",
        metadata={"help": "LLVM's name of a CPU, CUDA's architecture or Vulkan's target; empty: any"},
    )
    features: str = field(default="", metadata={"help": "LLVM's features of a CPU: +v,+zvl256b"})
    threads: Literal[0, 1] = field(
        default=0, metadata={"help": "1: runs keep to the thread that calls; 0 leaves it to IREE"}
    )
    level: Literal["O0", "O1", "O2", "O3"] = field(
        default="O2", metadata={"help": "how hard the compiler tries"}
    )
    im2col: bool = field(default=True, metadata={"help": "compute convolutions as products of matrices"})

    @property
    def machine(self) -> str:
        """The target, and for `host` the name of this machine."""
        if self.target != "host":
            return self.target
        return _MACHINES.get(platform.machine(), platform.machine())

    @property
    def is_for_this_cpu(self) -> bool:
        """Whether the code may use all that this processor can do."""
        return (self.target == "host" and not self.processor) or self.processor == "host"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of IREE's compiler.

        Debug symbols name a temporary file, and with them no two artifacts of a region are the same.
        """
        return (
            "--iree-input-type=onnx",
            f"--iree-opt-level={self.level}",
            "--iree-opt-data-tiling=false",
            f"--iree-global-opt-use-im2col-for-convs={str(self.im2col).lower()}",
            "--iree-vm-bytecode-module-strip-source-map=true",
            "--iree-vm-emit-polyglot-zip=false",
            *self._target_flags,
        )

    @property
    def _target_flags(self) -> tuple[str, ...]:
        processor = self.processor or _PROCESSORS.get(self.target, "")
        if self.target == "cuda":
            return ("--iree-hal-target-device=cuda", f"--iree-cuda-target={processor}")
        if self.target == "vulkan":
            return ("--iree-hal-target-device=vulkan", f"--iree-vulkan-target={processor}")
        backend = "vmvx" if self.target == "vmvx" else "llvm-cpu"
        local = (
            "--iree-hal-target-device=local",
            f"--iree-hal-local-target-device-backends={backend}",
        )
        return local if self.target == "vmvx" else (*local, *self._cpu_flags)

    @property
    def _cpu_flags(self) -> tuple[str, ...]:
        abi = ("--iree-llvmcpu-target-abi=lp64d",) if self.machine == "riscv64" else ()
        common = ("--iree-llvmcpu-debug-symbols=false", *abi)
        if self.is_for_this_cpu:
            return (*common, "--iree-llvmcpu-target-cpu=host")
        return (
            *common,
            f"--iree-llvmcpu-target-triple={_TRIPLES.get(self.machine, self.machine)}",
            f"--iree-llvmcpu-target-cpu={self.processor or 'generic'}",
            f"--iree-llvmcpu-target-cpu-features={self.features or _FEATURES.get(self.machine, '')}",
        )
