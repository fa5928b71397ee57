"""The product for people who do not write papers: a model in a folder that is taught new classes and asked.

``faverage.app.model`` is the model, ``train`` makes new ones.
"""
