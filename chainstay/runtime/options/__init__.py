"""Options of a stage: ways to keep less than autograd saves, and to make the rest again."""
