"""The input: files, catalogue and overrides to a checked job, each value with its source.

Input files are read by :mod:`~autopar_core.config.tables`, changed by
:mod:`~autopar_core.config.overrides`, and turned into a :class:`~autopar_core.domain.job.Job` by
:func:`autopar_core.config.load.load_job`.
"""
