"""The page in a headless Chromium, as wide as a phone and a desktop, light and dark, without network."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from bertfuse.analysis.report import write_report
from bertfuse.graph_rewrite import fuse_file
from tests.tiny_models import exported

WIDTHS = (390, 1440)
NAMES = ("chromium", "chromium-browser", "chrome-headless-shell", "google-chrome")
CHROMIUM = os.environ.get("BERTFUSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium, or name one with BERTFUSE_CHROMIUM"
)

# Loads the page in frames of each width, looks at what is laid out, and leaves the findings as text.
HARNESS = """<!DOCTYPE html><html><body>%s<pre id="found"></pre><script>
const shown = element => element.getClientRects().length > 0;
function look(frame) {
  const doc = frame.contentDocument, win = frame.contentWindow, width = doc.documentElement.clientWidth;
  const all = [...doc.body.querySelectorAll('*')];
  const outside = all.filter(e => shown(e) && !e.closest('.scroll') && e.getBoundingClientRect().right > width + 1);
  const boxes = [...doc.querySelectorAll('svg.layer g')].map(g => {
    const [rect, text] = [g.querySelector('rect'), g.querySelector('text')];
    return {
      label: text.textContent, spare: rect.getBBox().width - text.getBBox().width,
      pixels: text.getBoundingClientRect().height,
      colours: [win.getComputedStyle(rect).fill, win.getComputedStyle(text).fill],
    };
  });
  const tables = [...doc.querySelectorAll('.scroll')].filter(e => e.querySelector('table.ops'));
  const cut = tables.filter(e => e.scrollWidth > e.clientWidth);
  const page = win.getComputedStyle(doc.body);
  return {
    width, cut: cut.length, height: doc.documentElement.scrollHeight, overflow: doc.documentElement.scrollWidth - width,
    outside: outside.map(e => e.outerHTML.slice(0, 80)), boxes,
    plots: ['wide', 'narrow'].map(name => [...doc.querySelectorAll('.' + name)].filter(shown).length),
    colours: [page.backgroundColor, page.color],
    soft: win.getComputedStyle(doc.querySelector('.note')).color,
    fetched: win.performance.getEntriesByType('resource').map(entry => entry.name),
    dark: win.matchMedia('(prefers-color-scheme: dark)').matches,
  };
}
window.onload = () => {
  document.getElementById('found').textContent = JSON.stringify([...document.querySelectorAll('iframe')].map(look));
};
</script></body></html>"""


@pytest.fixture(scope="module", params=["whole", "broken"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a tiny BERT, and of one whose first GELU is scaled and whose names are long."""
    folder = tmp_path_factory.mktemp("browser")
    model = onnx.load(exported("feature-extraction", "dynamo", "sdpa"))
    if request.param == "broken":
        gelu = next(node for node in model.graph.node if node.op_type == "Gelu")
        model.graph.initializer.append(onnx.helper.make_tensor("factor", 1, [], [0.9]))
        inputs = [gelu.input[0], "factor"]
        scaled = onnx.helper.make_node("Mul", inputs, ["/encoder/layer.0/" + "scaled" * 20], name="long/name" * 20)
        model.graph.node.insert(list(model.graph.node).index(gelu), scaled)
        gelu.input[0] = scaled.output[0]
    onnx.save(model, folder / "model.onnx")
    (folder / "config.json").write_text((exported().parent / "config.json").read_text())
    fuse_file(folder / "model.onnx", folder / "model.fused.onnx", dtype="fp16" if request.param == "broken" else None)
    return write_report(folder / "model.onnx", folder / "model.fused.onnx", seconds=0.01, sizes=[(1, 4), (2, 8)])


def look(page: Path, scratch: Path, dark: bool) -> list[dict[str, Any]]:
    frames = "".join(
        f'<iframe src="{page.name}" style="width:{width}px;height:900px;border:0"></iframe>' for width in WIDTHS
    )
    harness = page.with_name("harness.html")
    harness.write_text(HARNESS % frames)
    command = [
        CHROMIUM, "--headless", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        "--dump-dom", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={scratch}",
        "--virtual-time-budget=10000",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"file://{harness}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found and found[1], f"the page did not load: {done.stdout[:300]} {done.stderr[-300:]}"
    return json.loads(html.unescape(found[1]))


def contrast(first: str, second: str) -> float:
    """WCAG's contrast of two colours "rgb(r, g, b)": 1 to 21."""

    def luminance(colour: str) -> float:
        values = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_fits_and_reads(page: Path, dark: bool, tmp_path: Path) -> None:
    found = look(page, tmp_path, dark)
    assert [frame["width"] for frame in found] == list(WIDTHS)
    for frame in found:
        where = f"{frame['width']} pixels wide"
        assert frame["overflow"] <= 0 and not frame["outside"], (where, frame["outside"])
        assert frame["cut"] == 0, where
        assert frame["fetched"] == [] and frame["dark"] == dark
        assert frame["plots"] == ([0, 2] if frame["width"] < 700 else [2, 0]), where
        # Text: WCAG AA asks for 4.5.
        paper, ink = frame["colours"]
        assert contrast(paper, ink) > 7 and contrast(paper, frame["soft"]) > 4.5
        assert len(frame["boxes"]) > 20
        for box in frame["boxes"]:
            assert box["spare"] > 0, (where, box)
            assert contrast(*box["colours"]) > 4.5, (where, box)
            assert box["pixels"] > 6, (where, box)
    assert (contrast(found[0]["colours"][0], "rgb(0, 0, 0)") < 3) == dark
