"""Any CPU that LiteRT runs on: phones, boards, PCs."""

from edgeport.compilers.none import NoCompiler
from edgeport.targets.base import FLATBUFFER_PASSES, GRAPH_PASSES, Target

TARGETS = (
    Target(
        name="cpu",
        title="LiteRT on a CPU (XNNPACK)",
        recipes=(
            "float32",
            "dynamic_wi8_afp32",
            "weight_only_wi8_afp32",
            "static_wi8_ai8",
            "static_wi8_ai16",
        ),
        layout="keep",
        border_type="float32",
        compiler=NoCompiler(),
        runners=("host", "reference"),
        graph_passes=GRAPH_PASSES,
        flatbuffer_passes=FLATBUFFER_PASSES,
    ),
)
