"""Actions, one module each; the module's name is the value of ``action=``.

Actions on clusters and jobs are in `jobs`.
"""
