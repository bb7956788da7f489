"""The live page of a run: `coterie watch RUN`.

The training process writes its run folder as usual and does not know about the page, which only
reads:

    run_files.py   reads what was appended to the files of one run folder
    snapshot.py    turns it into a `Snapshot`: plain, typed data
    folder.py      finds the runs of a folder (one run or a comparison) and polls them once a second
    figures.py, text.py   the figures and sentences of a snapshot
    page.py        renders the sections of the page with the templates in templates/
    feed.py        polls the folder and renders the page while somebody reads it
    server.py      serves the page and streams the sections that changed, behind a token

page.js replaces changed sections in the browser and reconnects after an interruption.
"""
