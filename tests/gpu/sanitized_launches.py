"""What tests.gpu.sanitize launches: every op and tactic, at small odd sizes, each kernel with several tiles, too."""

from __future__ import annotations

import itertools
import os
import re

GEMMS = ("FusedGemm", "FusedGemmGelu", "FusedGemmGeluLayerNorm", "FusedGemmLayerNorm")
RMS_NORM = "FusedRMSNorm"
PACKED_OPS = ("EmbedLayerNorm", RMS_NORM, *GEMMS, "PackTokens", "UnpackTokens", "FirstTokens", "RaggedPositions")
TWO_PART_OPS = ("FusedGatedGemm", "FusedGemmResidualNorm")  # a product of two factors; a norm and what it normalises
ROTARY = "FusedGemmRotary"
TABLES = "RotaryTables"
ATTENTION_OPS = ("FusedAttention", "FusedAttentionVariant")
OPS = ("AddQKVBias", *ATTENTION_OPS, ROTARY, TABLES, *TWO_PART_OPS, *PACKED_OPS)
DTYPES = ("float32", "float16", "bfloat16")
SEVERAL_TILES = (6400, 768, 456)
SEVERAL_8_BIT_TILES = ((6400, 768, 464), (6400, 1024, 912))  # k: a multiple of 16
# More blocks of Hopper's narrow tiles than it has multiprocessors, and a short k: their rings are trimmed.
TRIMMED, NARROW_TILES = (520, 1536, 144), ("64x32", "64x64", "64x96")
TRIMMED_NORM = (5800, 384, 64)  # the same of clusters that end in LayerNorm
TWO_PARTS_8_BIT = (700, 384, 144)  # more of the smallest tiles than some tactics' blocks take at once
# The kernels whose blocks take several tiles; the others do nothing new with many rows.
PERSISTENT = ("128x192",)
PERSISTENT_8_BIT = ("128x192", "64x192 cluster", "64x128 cluster")
# (rows, n, k): a part of a tile in every direction; whole rows in one cluster and several of them; no alignment at all;
# trimmed rings; more of the largest tiles than a GPU has multiprocessors: Hopper's blocks then take several each.
SIZES = ((131, 384, 136), (67, 768, 200), (13, 37, 29), TRIMMED, SEVERAL_TILES)
# Rows that one block or few hold; of the kernels that end in LayerNorm.
NARROW = tuple((131, n, 136) for n in (32, 64, 96, 128, 192, 256))
# (batch, sequence, heads, head size): parts of tiles, several tiles, a size without tensor cores, and so many tiles
# that Hopper's blocks take five and more each: only then do they use a mask's buffer again.
ATTENTIONS = ((2, 77, 2, 64), (1, 150, 1, 128), (2, 33, 3, 32), (1, 19, 2, 24), (70, 150, 3, 32))
ATTENTIONS += ((250, 77, 3, 64), (250, 77, 3, 128))
# (lengths of packed sequences, heads, head size): the same, and sequences of nothing.
PACKED = (((0, 1, 77, 64, 130, 3), 2, 64), ((150, 0, 33), 1, 128), ((19, 0, 5), 2, 24), ((77, 1, 60) * 40, 3, 32))
# (heads, heads of keys, head size, window's left and right) of variants: grouped heads, causal, windows that leave out
# whole tiles.
VARIANTS = ((4, 1, 64, -1, -1), (2, 2, 64, -1, 0), (3, 3, 64, 32, 32), (2, 1, 128, 40, 0), (2, 2, 24, 5, 9))
# (batch, sequence, k, heads, heads of keys, head size) of products that rotate: several tiles of some blocks, and heads
# that no epilogue rotates.
ROTARIES = ((2, 77, 136, 4, 2, 64), (50, 128, 264, 4, 4, 64), (2, 33, 72, 2, 1, 32))
TABLE_SIZES = ((77, 32), (1, 5), (3000, 40))  # (places, pairs) of tables of cosines and sines
EMBEDDINGS = (((3, 19), 77), ((3, 19), 768), ((150, 71), 768))  # from 2048 rows on a warp for several
# (rows, columns, elements off alignment) of norms: a block for each row by four columns and by one, a warp for each.
NORMS = ((57, 768, 0), (57, 77, 0), (57, 768, 1), (3, 9000, 0), (900, 768, 0))
QUANTIZED_SEEDS = {"float32": range(6), "float16": range(6, 18), "bfloat16": range(18, 24)}  # a portion for each
MOST_ROWS = 300  # of quantised products


def launch_all(ops, dtypes, narrow, packed, quantized, tactics_named, part, parts):
    """Launches everything once, or each `parts`-th call from `part` on, on this process's GPU."""
    import torch

    from tests.gpu.harness import EPSILON, gemm_inputs, near_one, norm_inputs, poisoned, randint, randn, turns
    from tests.gpu.kernels import Bound, _described, library_file, native
    from tests.gpu.packed import count_of, packed_calls
    from tests.gpu.quantized import FLOAT8, Case, quantized_rows, rounded
    from tests.gpu.quantized_attention import Case as AttentionCase

    launches, own = 0, native.NO_CUBLASLT if os.environ.get("BERTFUSE_CUBLASLT") == "0" else 0
    launch_number = itertools.count()

    def is_due():
        return next(launch_number) % parts == part

    def every_tactic(op, inputs, shapes, dtype, attributes, named=("",), **fields):
        outputs = [poisoned(*shape, dtype=dtype) for shape in shapes]
        launch(op, inputs, outputs, attributes, named, **fields)

    def launch(op, inputs, outputs, attributes, named=("",), **fields):
        nonlocal launches
        fields["flags"] = fields.get("flags", 0) | own
        default = Bound(op, inputs, outputs, attributes, **fields)
        tactics = default.tactics()
        for tactic in range(-1, tactics if tactics > 1 else 0):
            name = native.tactic_name(op, default.call, tactic, library_file())
            unnamed = tactic >= 0 and not any(word in name for word in named)
            if unnamed or not re.search(tactics_named, name) or not is_due():
                continue
            try:
                Bound(op, inputs, outputs, attributes, tactic, **fields).run()
                torch.cuda.synchronize()  # or the tools' books of launches under way fill their memory
            except Exception:
                sizes = [None if tensor is None else tuple(tensor.shape) for tensor in inputs]
                print(f"failed at launch {launches}: {op} {sizes} {attributes}, {name}", flush=True)
                raise
            launches += 1

    def packed_attention(lengths, heads, size, dtype):
        offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        rows = int(offsets[-1])
        qkv = randn(2, rows, 3 * heads * size, dtype=dtype)  # half of it padding
        inputs = [qkv, randn(3 * heads * size, dtype=dtype), None, offsets.cuda()]
        every_tactic("FusedAttention", inputs, [(2, rows, heads * size)], dtype, [heads, size**-0.5])

    def variant(batch, sequence, description, dtype):
        """Padded with a mask, packed, and with turns, norms and a bias by distance."""
        heads, shared, size, left, right = description
        columns = (heads + 2 * shared) * size
        qkv, shape = randn(batch, sequence, columns, dtype=dtype), [(batch, sequence, heads * size)]
        attributes = [heads, shared, size**-0.5, "halves", EPSILON, left, right]
        inputs = [qkv, randn(columns, dtype=dtype), randint(2, (batch, sequence), torch.int32), *[None] * 5]
        every_tactic("FusedAttentionVariant", inputs, shape, dtype, [*attributes, 0])
        lengths = [0, sequence, *[sequence // 2] * (batch - 1)]
        cu_seqlens = torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32).cuda()
        every_tactic("FusedAttentionVariant", [*inputs[:2], *[None] * 7, cu_seqlens], shape, dtype, [*attributes, 0])
        inputs[3:7] = [*turns(sequence, size // 4, dtype), *(randn(size, dtype=dtype) for _ in range(2))]
        inputs[7] = randn(1, heads, 2 * sequence - 1, dtype=dtype)
        every_tactic("FusedAttentionVariant", inputs, shape, dtype, [*attributes, sequence - 1])

    def tiles_of(size, dtype):
        """Parts of the names of the tactics that do something new with this size."""
        if dtype == torch.float32:
            return ("",)
        return {SEVERAL_TILES: PERSISTENT, TRIMMED: NARROW_TILES, TRIMMED_NORM: ("cluster 1x4",)}.get(size, ("",))

    def two_parts(op, size, dtype, packed):
        m, n, k = size
        flags = (0, native.ALLOW_TF32) if dtype == torch.float32 else (0,)
        count = [count_of(m - m // 3)] * packed
        if op == "FusedGatedGemm":
            inputs, shapes, kinds = [*gemm_inputs(m, 2 * n, k, dtype)], [(m, n)], [["gelu"], ["silu"]]
        else:
            x, weight, bias = gemm_inputs(m, n, k, dtype)
            residual, gamma, beta = norm_inputs(m, n, dtype)
            inputs, shapes = [x, weight, residual, gamma, bias, beta], [(m, n)] * 2
            kinds = [[EPSILON, norm] for norm in ("layer", "rms")]
        named = tiles_of(size, dtype)
        calls = [([*([*inputs[:5], None] if "rms" in kind else inputs), *count], kind) for kind in kinds]
        if op != "FusedGatedGemm":  # of a product that is normalised, too
            of_both = [*(count or [None]), near_one(n, dtype)[None]]
            calls += [([*given[:6], *of_both], kind) for given, kind in calls]
        for given, attributes in calls:
            for flag in flags:
                every_tactic(op, given, shapes, dtype, attributes, named, flags=flag)

    def rotary(size, dtype, packed):
        batch, sequence, k, heads, shared, head = size
        rows, columns = batch * sequence, (heads + 2 * shared) * head
        x, weight, bias = gemm_inputs(rows, columns, k, dtype)
        inputs = [x.view(batch, sequence, k), weight, *turns(sequence, head // 2, dtype), bias]
        places = [randint(sequence, (batch, sequence), torch.int32), count_of(rows - rows // 3)] * packed
        shapes = [(batch, sequence, columns)]
        named = ("sm90" if rows > 1000 and dtype != torch.float32 else "",)
        every_tactic(ROTARY, [*inputs, *places], shapes, dtype, [heads, shared, "halves"], named)

    def tables(places, pairs, dtype):
        frequencies, like = 10000.0 ** -torch.rand(pairs, dtype=torch.float32), torch.zeros((), dtype=dtype)
        inputs = [randint(2, (2, places), torch.int32), frequencies.cuda(), like.cuda()]
        for attributes in (["product", 1.0], ["quotient", 1.5]):
            launch(TABLES, inputs, [poisoned(places, pairs, dtype=dtype) for _ in range(2)], attributes)

    def quantized_product(seed, op, dtype, size=None):
        case = Case(seed, MOST_ROWS, op, dtype, size)
        tactics = {None: ("",), TRIMMED: NARROW_TILES}.get(size, PERSISTENT_8_BIT)
        with_results, to = case.in_8_bits()
        calls = [(case.named(), None), (with_results, to)]
        if op == "FusedGemmLayerNorm" and dtype != torch.float32 and to == torch.int8:
            calls += [(case.with_restored_residual(named), kind) for named, kind in calls]
        for named, kind in calls:
            inputs = [None if tensor is None else tensor.cpu().cuda() for tensor in named.values()]
            outputs = [poisoned(case.m, case.n, dtype=dtype)]
            if kind is not None:
                numbers = torch.full((case.m, case.n), 0xFF, dtype=torch.uint8).cuda().view(kind)
                outputs += [numbers, poisoned(case.m, dtype=torch.float32)]
            launch(op, inputs, outputs, case.attributes, tactics)

    def quantized_two_parts(op, dtype):
        """x rounded by the op and in 8 bits already, y in 16 bits and in 8."""
        m, n, k = TWO_PARTS_8_BIT
        gates = op == "FusedGatedGemm"
        spec, rows = _described(op), 2 * n if gates else n
        values = {"epsilon": EPSILON, "activation": "silu"}
        for to in (torch.int8, FLOAT8):
            scale = torch.full((rows,), 1e-3).cuda()
            weight, x = randint(100, (rows, k), torch.int32).to(dtype), randn(m, k, dtype=dtype)
            given = {"x": x, "weight": rounded(weight.cpu().float() - 50, to).cuda(), "weight_scale": scale}
            given["bias"] = randn(rows, dtype=dtype)
            if not gates:
                given.update(zip(("residual", "gamma", "beta"), norm_inputs(m, n, dtype), strict=True))
            numbers, row_scales = (tensor.cpu() for tensor in quantized_rows(x, to))
            in_8_bits = {"x_quantized": numbers.cuda(), "x_row_scale": row_scales[:, 0].contiguous().cuda()}
            writes = {"y_zero_point": torch.zeros((), dtype=torch.uint8).cuda().view(to)}
            if gates:
                writes["y_tensor_scale"] = torch.tensor(0.05).cuda()
            for norm in ("",) if gates else ("layer", "rms"):
                attributes = [{**values, "norm": norm}.get(a.name, a.default) for a in spec.attributes]
                for more in ({}, in_8_bits, {**in_8_bits, **writes}):
                    named = {**given, **more, "beta": given.get("beta") if norm == "layer" else None}
                    outputs = [poisoned(m, n, dtype=dtype) for _ in spec.outputs[: 1 if gates else 2]]
                    if "y_zero_point" in more:
                        outputs += [torch.full((m, n), 0xFF, dtype=torch.uint8).cuda().view(to)]
                        outputs += [poisoned(m, dtype=torch.float32)]
                    launch(op, [named.get(tensor.name) for tensor in spec.inputs], outputs, attributes)

    def quantized_rotary(dtype):
        """x in 8 bits already; several tiles of some blocks, and heads that no epilogue rotates."""
        for batch, sequence, k, heads, shared, head in ((2, 77, 144, 4, 2, 64), (30, 128, 272, 4, 4, 64), ROTARIES[2]):
            rows, columns, k = batch * sequence, (heads + 2 * shared) * head, k // 16 * 16
            for to in (torch.int8, FLOAT8):
                weight = rounded(randint(100, (columns, k), torch.int32).cpu().float() - 50, to).cuda()
                numbers, row_scales = (t.cpu().cuda() for t in quantized_rows(randn(rows, k, dtype=dtype), to))
                cos, sin = turns(sequence, head // 2, dtype)
                named = {"x": randn(batch, sequence, k, dtype=dtype), "weight": weight, "cos": cos, "sin": sin}
                named |= {"bias": randn(columns, dtype=dtype), "weight_scale": torch.full((columns,), 1e-3).cuda()}
                named["x_quantized"] = numbers.view(batch, sequence, k)
                named["x_row_scale"] = row_scales.reshape(batch, sequence).contiguous()
                inputs = [named.get(tensor.name) for tensor in _described(ROTARY).inputs]
                outputs = [poisoned(batch, sequence, columns, dtype=dtype)]
                launch(ROTARY, inputs, outputs, [heads, shared, "halves", "tables"])

    def quantized_attention(seed, op, dtype):
        nonlocal launches
        for _, _, writing in AttentionCase(seed, op, dtype).launches():
            if is_due():
                writing.run()
                torch.cuda.synchronize()
                launches += 1

    for name in dtypes if quantized else ():
        for op in (name for name in ops if name in ATTENTION_OPS):
            for seed in QUANTIZED_SEEDS[name]:
                quantized_attention(seed, op, getattr(torch, name))
        for op in (name for name in ops if name in TWO_PART_OPS):
            quantized_two_parts(op, getattr(torch, name))
        if ROTARY in ops:
            quantized_rotary(getattr(torch, name))
        for op in (name for name in ops if name in GEMMS):
            for size in (*SEVERAL_8_BIT_TILES, TRIMMED):
                quantized_product(0, op, getattr(torch, name), size)
            for seed in QUANTIZED_SEEDS[name]:
                quantized_product(seed, op, getattr(torch, name))
    for dtype in () if quantized else (getattr(torch, name) for name in dtypes):
        for op in (name for name in ops if name in TWO_PART_OPS and not narrow):
            for size in SIZES:
                for rows_are_packed in (True,) if packed else (False, True):
                    two_parts(op, size, dtype, rows_are_packed)
        for size in ROTARIES if ROTARY in ops and not narrow else ():
            for rows_are_packed in (True,) if packed else (False, True):
                rotary(size, dtype, rows_are_packed)
        for rows, columns, offset in NORMS if RMS_NORM in ops and not (narrow or packed) else ():
            inputs = [randn(rows, columns, dtype=dtype, offset=offset), near_one(columns, dtype)]
            launch(RMS_NORM, inputs, [poisoned(rows, columns, dtype=dtype)], [EPSILON, 1.0])
        for size in TABLE_SIZES if TABLES in ops and not (narrow or packed) else ():
            tables(*size, dtype)
        for described in VARIANTS if "FusedAttentionVariant" in ops and not (narrow or packed) else ():
            for batch, sequence in ((2, 150), (60, 77)):
                variant(batch, sequence, described, dtype)
        for lengths, heads, size in PACKED if "FusedAttention" in ops and not narrow else ():
            packed_attention(lengths, heads, size, dtype)
        for op in (name for name in ops if name in PACKED_OPS and not narrow):
            for inputs, described, attributes, named in packed_calls(op, dtype):
                made = [torch.full(shape, -77, dtype=kind).cuda() for shape, kind in described]
                launch(op, inputs, made, attributes, (named,))
        if packed:
            continue
        for op in (name for name in ops if name in GEMMS):
            of_norms = (*NARROW, TRIMMED_NORM) if "LayerNorm" in op else ()
            for m, n, k in NARROW if narrow else SIZES + of_norms:
                named = tiles_of((m, n, k), dtype)
                inputs = [*gemm_inputs(m, n, k, dtype), *norm_inputs(m, n, dtype, op=op)]
                inputs = inputs if "LayerNorm" in op else inputs[:3]
                epsilon = [EPSILON] * ("LayerNorm" in op)
                if op == "FusedGemm":  # its bias is optional
                    every_tactic(op, [*inputs[:2], None], [(m, n)], dtype, [], named)
                for gelu in [["none"], ["tanh"]] if "Gelu" in op else [[]]:
                    for flags in (0, native.ALLOW_TF32) if dtype == torch.float32 else (0,):
                        every_tactic(op, inputs, [(m, n)], dtype, [*epsilon, *gelu], named, flags=flags)
        for batch, sequence, heads, size in () if narrow else ATTENTIONS:
            qkv = randn(batch, sequence, 3 * heads * size, dtype=dtype)
            bias = randn(3 * heads * size, dtype=dtype)
            if "FusedAttention" in ops:
                for index in (None, torch.int32, torch.int64):
                    mask = None
                    if index is not None:
                        mask = randint(2, (batch, sequence), index)
                    shapes = [(batch, sequence, heads * size)]
                    every_tactic("FusedAttention", [qkv, bias, mask], shapes, dtype, [heads, size**-0.5])
            if "AddQKVBias" in ops:
                every_tactic("AddQKVBias", [qkv, bias], [(batch, heads, sequence, size)] * 3, dtype, [heads])
        for shape, columns in EMBEDDINGS if "EmbedLayerNorm" in ops else ():
            for index in (torch.int32, torch.int64):
                ids = randint(50, shape, index)
                tables = [randn(count, columns, dtype=dtype) for count in (50, 50, 50)]
                norm = [randn(columns, dtype=dtype) for _ in range(2)]
                inputs = [ids, *tables[:2], *norm, ids, tables[2], ids]
                every_tactic("EmbedLayerNorm", inputs, [(*shape, columns)], dtype, [EPSILON])
    print(f"launches: {launches}")
