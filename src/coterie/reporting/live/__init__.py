"""A page that shows a run while it is trained: `coterie watch RUN`.

1. Whoever trains writes its folder as ever and knows nothing of this page, which only reads.
2. tail.py reads the rows of metrics.jsonl that were added since it last looked; files.py adds what
   else a run's folder has: its config, the sites' scores at its checkpoints, the end of its log.
3. folder.py finds the runs of a folder, of one run or of a comparison, and looks at them once a
   second; snapshot.py turns what was read into a `Snapshot`: plain, typed data. A server of sites
   adds a `SiteReport` for each: its state and its last words.
4. sections.py draws a snapshot with the figures of `reporting`, as the sections of a page.
5. feed.py looks, draws what somebody watches, and never spends more than a fiftieth of the time on
   it; a page that nobody watches is not drawn.
6. app.py serves the page and its events (starlette): read-only, behind a token, with a strict
   Content-Security-Policy. An event holds only the sections that changed.
7. page.js puts these in place and connects again when the server was gone.
8. server.py binds the port and runs uvicorn, in this process or in a thread of a server of sites.
"""
