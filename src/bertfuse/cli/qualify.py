"""The command that tests kernels and fusion on random problems: qualify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertfuse.errors import BertfuseError

from .options import Json
from .output import Steps, command, print_json, stdout, table

if TYPE_CHECKING:
    from bertfuse.qualify.campaign import Report
    from bertfuse.qualify.whole import WholeReport

FOUND = 1
INTERRUPTED = 130
JOURNAL, MUTANTS = "qualify.jsonl", "mutants"
_FEW = 5  # sizes of a whole model on the CPU


def qualify(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]",
            help="ONNX file: test fusion, on it and on random mutants of it, not the kernels.",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long to test.")] = 8.0,
    devices: Annotated[
        str | None,
        typer.Option(metavar="cpu,cuda:0,…", help="Devices to test; cuda: every GPU.  \\[default: all there are]"),
    ] = None,
    ops: Annotated[str | None, typer.Option(metavar="OP,…", help="Only these ops.")] = None,
    dtypes: Annotated[
        str | None, typer.Option(metavar="DTYPE,…", help="Only these of float32, float16 and bfloat16.")
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Library to test: any with bertfuse's C ABI.  \\[default: the installed one]"
        ),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(
            "--problem",
            metavar="TEXT",
            help="Run this problem alone, written as findings print it; give it again for more.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the random problems.  \\[default: drawn and printed]")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many problems (or mutants).")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes.  \\[default: as many as cores]")
    ] = None,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed", help="Measure speed instead: Fast@p against PyTorch; of a folder, against ONNX Runtime's fusion."
        ),
    ] = False,
    shapes: Annotated[
        bool,
        typer.Option(
            "--shapes",
            help="Test instead what fusion takes shapes and constants for, on random models of every ONNX operator; "
            "--ops names operators, --problem a model by its number.",
        ),
    ] = False,
    patience: Annotated[float, typer.Option(min=0.1, help="Seconds after which a problem counts as hanging.")] = 20.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help=f"Where findings go: a file of JSON lines; with MODEL, a folder.  \\[default: {JOURNAL}, {MUTANTS}]",
        ),
    ] = None,
    reference: Annotated[
        str, typer.Option(metavar="numpy|torch", help="What computes the float64 reference; torch: on the GPU.")
    ] = "numpy",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML page.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Spread the workers over this Ray cluster; local starts one here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Test the kernels on random problems, on this machine's GPUs and CPU, for crashes and wrong results.

    Problems run in processes of their own, so that a crash ends nothing else. What is found is made as small as it can
    be, and printed with a command that repeats it. With MODEL, fusion is tested instead: the model is changed at
    random, and each mutant must either be refused or give the same outputs when fused. Exit code 0: nothing found;
    1: findings; 2: bad input.

    [bold]Examples[/]

      bertfuse qualify --minutes 8 --html qualify.html

      bertfuse qualify --devices cuda:0 --ops FusedAttention --dtypes float16

      bertfuse qualify --library build/libmine.so --devices cpu --minutes 1

      bertfuse qualify model.onnx --minutes 2

      bertfuse qualify --speed --minutes 5

      bertfuse qualify --shapes --minutes 5
    """
    if shapes:
        if model is not None or speed:
            raise BertfuseError("--shapes: draws models of its own; leave out MODEL and --speed")
        found = _shapes(minutes, seed, count, ops, problem, output, as_json)
    elif speed:
        options = {"minutes": minutes, "seed": seed}
        found = _speed(model, options, {"ops": ops, "dtypes": dtypes, "count": count}, library, output, as_json)
    elif model is not None:
        found = _model(model, minutes, seed, count, output, as_json)
    elif problem:
        found = _repeat(problem, devices, library, patience, reference, as_json)
    else:
        options = {"ops": ops, "dtypes": dtypes, "workers": workers, "count": count, "ray": ray, "seed": seed}
        options |= {"devices": devices, "library": library, "patience": patience, "minutes": minutes}
        options["oracle"] = reference
        found = _hunt(options, output or Path(JOURNAL), html, as_json)
    if found:
        raise typer.Exit(FOUND)


def _model(model: Path, minutes: float, seed: int | None, count: int | None, out: Path | None, as_json: bool) -> bool:
    """The whole model on the GPU, or the CPU where there is none; then mutants of it."""
    from bertfuse.qualify.mutants import hunt
    from bertfuse.qualify.whole import has_gpu, whole_model

    with Steps(as_json) as steps:
        where = {"provider": "cuda"} if has_gpu() else {"provider": "cpu", "sizes": _FEW}
        whole, reason = None, ""
        try:
            whole = whole_model(model, seed=seed, progress=steps, **where)
        except BertfuseError as error:  # mutants are fed by other means
            reason = str(error)
        try:
            report = hunt(model, minutes=minutes, seed=seed, count=count, out=out, progress=steps)
        except BertfuseError as error:
            if whole is None:
                raise
            report, reason = None, str(error)  # too large to be copied a thousand times, for example
    if as_json:
        mutants = report.to_dict() if report else {"not_run": reason}
        print_json(mutants | {"whole_model": whole.to_dict() if whole else None})
    else:
        if whole is not None:
            _show_whole(whole)
        else:
            stdout().print(f"Whole model: not run: {reason}", markup=False, soft_wrap=True)
        if report is not None:
            report.show()
        else:
            stdout().print(f"Mutants: not run: {reason}", markup=False, soft_wrap=True)
    return bool((report and report.findings) or (whole and whole.findings))


def _shapes(
    minutes: float,
    seed: int | None,
    count: int | None,
    ops: str | None,
    problem: list[str] | None,
    out: Path | None,
    as_json: bool,
) -> bool:
    """Shape rules against ONNX Runtime."""
    import json

    from bertfuse.files import check_target, replacing
    from bertfuse.qualify.shape_rules import hunt

    if out is not None:
        check_target(out)
    if problem and (seed is None or not all(number.isdigit() for number in problem)):
        raise BertfuseError("--problem: with --shapes it is a model's number, beside --seed; copy both from a finding")
    names = None if ops is None else [name.strip() for name in ops.split(",")]
    numbers = [int(number) for number in problem] if problem else None
    with Steps(as_json) as steps:
        report = hunt(minutes=minutes, count=count, seed=seed, ops=names, numbers=numbers, progress=steps)
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(report.to_dict())
        return bool(report.findings)
    for finding in report.findings:
        text = f"\n{finding.kind}, {1 + finding.same} times: {finding.text}\n{finding.model}\n  {finding.command}"
        stdout().print(text, markup=False, soft_wrap=True)
    stdout().print(report.summary(), markup=False, soft_wrap=True)
    return bool(report.findings)


def _show_whole(report: WholeReport) -> None:
    console = stdout()
    for dtype in dict.fromkeys(run.dtype for run in report.runs):
        runs = [run for run in report.runs if run.dtype == dtype]
        sizes = ", ".join(f"{run.batch}x{run.sequence}" for run in runs)
        error = max(run.error for run in runs)
        console.print(
            f"Whole model in {dtype} on {report.provider}, seed {report.seed}: largest error {error:.2g}; {sizes}"
        )
        for run in runs:
            if run.wrong:
                console.print(f"wrong: {dtype} {run.batch}x{run.sequence}: {run.wrong}", markup=False, soft_wrap=True)
    for dtype, reason in report.absent.items():
        console.print(f"{dtype}: not run: {reason}", markup=False, soft_wrap=True)


def _speed(
    folder: Path | None,
    options: dict[str, Any],
    drawn: dict[str, Any],
    library: Path | None,
    out: Path | None,
    as_json: bool,
) -> bool:
    import json

    from bertfuse.files import check_target, replacing
    from bertfuse.graph_rewrite.ops import MODEL_OPS
    from bertfuse.qualify.kernels import library_file, names
    from bertfuse.qualify.problem import DTYPES
    from bertfuse.qualify.speed import THRESHOLDS, speed

    if out is not None:
        check_target(out)
    with Steps(as_json) as steps:
        if folder is None:
            ops = names(drawn["ops"], list(MODEL_OPS), "--ops")
            dtypes = names(drawn["dtypes"] or "float16,bfloat16", DTYPES, "--dtypes")
            file = library_file(library)
            report = speed(library=file, ops=ops, dtypes=dtypes, count=drawn["count"], progress=steps, **options)
        else:
            from bertfuse.qualify.models import model_speed

            report = model_speed(folder, progress=steps, **options)
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(report.to_dict())
        return bool(report.findings)
    console = stdout()
    columns = ["faster than", "op", "problems", "times as fast", *(f"Fast@{threshold:g}" for threshold in THRESHOLDS)]
    title = f"{len(report.rows)} problems on {report.device} in {report.seconds:.0f} s, seed {report.seed}"
    console.print(table(title, columns, report.table()))
    console.print("Times as fast: geometric mean. Fast@p: right, and at least p times as fast.")
    for size, share in report.profile.items():
        console.print(f"{size}: {share:.1%} of the GPU's time in our kernels")
    for name, reason in report.absent.items():
        console.print(f"{name}: not measured: {reason}", markup=False)
    for row in report.findings:
        console.print(f"wrong: {row.problem}: {row.wrong}", markup=False, soft_wrap=True)
    return bool(report.findings)


def _repeat(
    problems: list[str], devices: str | None, library: Path | None, patience: float, oracle: str, as_json: bool
) -> bool:
    from bertfuse.qualify.kernels import repeat

    verdicts = repeat(problems, devices=devices, library=library, patience=patience, oracle=oracle)
    if as_json:
        print_json({"problems": verdicts})
    else:
        for verdict in verdicts:
            name = f"{verdict['device']}: {verdict['problem']}" + (
                f" ({verdict['tactic']})" if verdict["tactic"] else ""
            )
            for kind, text in verdict["findings"]:
                stdout().print(f"{name}: {kind}: {text}", markup=False, soft_wrap=True)
            if not verdict["findings"]:
                said = verdict["declined"] or verdict["unsupported"]
                said = said or f"right; largest error {verdict['ratio']:.2f} of what is allowed"
                stdout().print(f"{name}: {said}", markup=False, soft_wrap=True)
    return any(verdict["findings"] for verdict in verdicts)


def _hunt(options: dict[str, Any], journal: Path, html: Path | None, as_json: bool) -> bool:
    from bertfuse.files import check_target, replacing
    from bertfuse.qualify.kernels import qualify_kernels

    if html is not None:
        check_target(html)
    with Steps(as_json) as steps:
        report = qualify_kernels(**options, out=journal, progress=steps)
    if html is not None:
        from bertfuse.qualify.page import page

        with replacing(html) as temporary:
            temporary.write_text(page(report), encoding="utf-8")
    if as_json:
        print_json(report.to_dict())
    else:
        show(report, journal)
    if report.interrupted and not report.findings:
        raise typer.Exit(INTERRUPTED)
    return bool(report.findings)


def show(report: Report, journal: Path) -> None:
    """Problems by device, op and dtype, with the largest error; then every finding with its command."""
    from bertfuse.qualify.page import rows

    console = stdout()
    made = [[r.device, r.op, r.dtype, str(r.count), str(len(r.tactics)), f"{r.error:.2f}"] for r in rows(report)]
    title = f"{report.total} problems in {report.seconds:.0f} s, seed {report.seed}"
    console.print(table(title, ["device", "op", "dtype", "problems", "tactics", "largest error"], made))
    for name, text in report.devices.items():
        console.print(f"{name}: {text}", markup=False)
    console.print("Largest errors are fractions of what is allowed.")
    if report.declined:
        console.print(f"Tactics that this device cannot launch: {sum(report.declined.values())} problems.")
    for (device, op, dtype, reason), count in sorted(report.unsupported.items()):
        console.print(f"Not supported, and not checked, on {device}: {op} {dtype}: {reason} ({count})", markup=False)
    for op, dtype, tactic in report.skipped:
        console.print(f"Not run any more after several faults: {op} {dtype} {tactic}".rstrip(), markup=False)
    for finding in report.findings:
        again = "" if finding.repeats else "; it did not happen again"
        console.print(
            f"\n{finding.kind}: {finding.op} {finding.dtype} on {finding.device}"
            f"{', tactic ' + finding.tactic if finding.tactic else ''}, {finding.occurrences} times{again}\n"
            f"  {finding.text}\n  {finding.command}",
            markup=False,
            soft_wrap=True,
        )
    count = len(report.findings)
    found = f"{count} finding{'s' if count > 1 else ''}" if count else "Nothing found"
    console.print(
        f"{found}{' until it was interrupted' if report.interrupted else ''}; details are in {journal}.", markup=False
    )


def add_to(app: typer.Typer) -> None:
    app.command()(command(qualify))
