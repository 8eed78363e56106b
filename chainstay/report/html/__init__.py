"""A plan as one self-contained HTML page.

`page` fills the template in `assets`; `charts` draws Bokeh figures, `embedded_charts` puts them
into the page, and `elements` escapes and formats every other piece of HTML.
"""
