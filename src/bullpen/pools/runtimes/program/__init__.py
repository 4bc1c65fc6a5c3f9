"""Workers that are programs in any language. They speak lines of JSON on their standard streams.

`runtime.py` is the runtime that the pool uses, `program.py` one program as the app sees it, `messages.py` the protocol,
which `docs/reference/program-protocol.md` describes. Programs are started, supervised and ended by the same code as
worker processes: `pools/runtimes/process/`.
"""
