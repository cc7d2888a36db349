"""The site: `pip install '.[docs]'`, then `sphinx-build -W docs build/site`."""

from importlib.metadata import version as installed

project = "mpqueue"
author = "mpqueue contributors"
release = version = installed("mpqueue")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3  # pages link to each other's headings, as they do in a source browser
suppress_warnings = ["myst.xref_missing"]  # links into the source tree, and to the README

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}

default_role = "code"  # single backticks, as docstrings have them
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_title = "mpqueue"
html_show_copyright = False
