# SPDX-License-Identifier: Apache-2.0
"""Speed of the engines relative to eager PyTorch by batch size, one panel per model."""

from __future__ import annotations

from bench.docs.registry import Results
from bench.plots.svg import Drawing, log_scale

SHAPES = (
    "64-128-128-10 relu", "784-512-256-10 relu", "256-1024-1024-256 gelu",
    "GeGLU 768-3072-768", "pre-LN tower 256x4", "tabular ResNet 192x4",
)  # fmt: skip
STYLES = {
    "OpenVINO": ("grey", 1.4, ""),
    "torch.compile": ("compile", 1.4, ""),
    "ONNX Runtime": ("teal", 1.4, ""),
    "limit": ("ink", 1.0, "3 3"),
    "fused": ("fused", 2.6, ""),
}
TITLES = {"limit": "limit of the machine", "fused": "fused-mlp"}
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP = 3, 200, 150, 44, 62
GAP_X, GAP_Y = 24, 56
LEAST = 0.25


def draw(results: Results, theme: str) -> Drawing:
    result = results["kernels"]
    threads = min(cell["threads"] for cell in result["cells"])
    cells = [c for c in result["cells"] if c["threads"] == threads and "eager" in c["best_us"]]
    shapes = [shape for shape in SHAPES if any(c["shape"] == shape for c in cells)]
    rows = -(-len(shapes) // COLUMNS)
    height = TOP + rows * (PANEL_HEIGHT + GAP_Y)
    picture = Drawing(720, height, theme, "Speed relative to eager PyTorch by batch size")
    picture.text(0, 16, "Speed of one forward pass, eager PyTorch = 1x (one thread)", "ink", 14, bold=True)
    place = 0.0
    for name in reversed([name for name in STYLES if name == "limit" or name in result["engines"]]):
        title = TITLES.get(name, name)
        bold = name != "limit"
        picture.text(place, 36, title if bold else f"- - {title}", STYLES[name][0], 12, bold=bold)
        place += (8.0 if bold else 7.2) * len(title) + 20
    batches = sorted({c["batch"] for c in cells})
    speeds = [c["best_us"]["eager"] / c["limit_us"] for c in cells if c["shape"] in shapes]
    most = max(8.0, *speeds)
    for index, shape in enumerate(shapes):
        left = LEFT + index % COLUMNS * (PANEL_WIDTH + GAP_X)
        top = TOP + index // COLUMNS * (PANEL_HEIGHT + GAP_Y)
        across = log_scale(batches[0], batches[-1], left, left + PANEL_WIDTH)
        up = log_scale(LEAST, most, top + PANEL_HEIGHT, top + 12)
        picture.text(left, top + 4, shape, "ink", 12, bold=True)
        for mark in (0.25, 0.5, 1, 2, 4, 8, 16, 32):
            if LEAST <= mark <= most:
                picture.line(
                    [(left, up(mark)), (left + PANEL_WIDTH, up(mark))], "unfused" if mark == 1 else "line", 1
                )
                if index % COLUMNS == 0:
                    colour = "unfused" if mark == 1 else "soft"
                    picture.text(
                        left - 6, up(mark) + 4, "eager" if mark == 1 else f"{mark:g}x", colour, 11, "end"
                    )
        for batch in batches:
            if batch in (1, 8, 64, 512):
                picture.text(across(batch), top + PANEL_HEIGHT + 15, str(batch), anchor="middle")
        picture.text(
            left + PANEL_WIDTH / 2, top + PANEL_HEIGHT + 28, "rows in a batch", size=10, anchor="middle"
        )
        points = [c for c in cells if c["shape"] == shape]
        for name, (colour, width, dashes) in STYLES.items():
            if name != "limit" and name not in result["engines"]:
                continue
            line = []
            for cell in points:
                us = cell["limit_us"] if name == "limit" else cell["best_us"][name]
                line.append((across(cell["batch"]), up(max(cell["best_us"]["eager"] / us, LEAST))))
            picture.line(line, colour, width, dashes)
        first = points[0]["best_us"]["eager"] / points[0]["best_us"]["fused"]
        said = f"{first:.1f}x at batch {points[0]['batch']}"
        picture.text(left + PANEL_WIDTH, top + 26, said, "fused", 12, "end", bold=True)
    return picture
