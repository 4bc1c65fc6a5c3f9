"""Workers that are programs in any language, which speak JSON in lines on their standard streams.

`runtime.py` is what the pool asks for, `program.py` one program from the app's side, `messages.py` the protocol, which
`docs/reference/program-protocol.md` describes. How programs are started, watched and ended is that of worker
processes: `runtimes/process/`.
"""
