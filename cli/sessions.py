"""Commands that run models: run, compare, bench, doctor."""
import typer

def add_to(app: typer.Typer) -> None:
    pass
