"""What a codegen in another Python imports: `from byoc_worker import Artifact, CompileError`."""
