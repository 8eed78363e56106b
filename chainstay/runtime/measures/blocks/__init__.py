"""Measures of models that go by blocks, whose own code runs between them.

===============  =============================================
`around_blocks`  what the model does around its blocks
`block_account`  what both cost, apart from the schedule
`block_costs`    measuring, the front
===============  =============================================
"""
