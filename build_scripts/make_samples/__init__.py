"""Owns the building of the sample manuals: from the texts in `content/` to the PDF and DOCX files that ship.

Must not know how the appliance reads them: it imports nothing of `appliance`.
"""
