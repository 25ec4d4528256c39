"""Training of acceptance heads (SpecDec++), which predict from a draft's hidden state whether the target accepts a
token.

trainer.heads.learner    online: what a run of trainer.distil.loop does with a head
trainer.heads.examples   drafted tokens as embeddings with their probability of acceptance
trainer.heads.fit        the weighted loss (section 4.4), training itself, scaling
trainer.heads.offline    offline: from files of prompts to a folder, with token mixing
"""
