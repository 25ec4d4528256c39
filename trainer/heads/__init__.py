"""Training of acceptance heads (SpecDec++), which predict from a draft's hidden state whether the target accepts a
token.

trainer.heads.examples   drafted tokens as embeddings with their probability of acceptance
trainer.heads.losses     the weighted loss (section 4.4), binary KL, calibration error
trainer.heads.fit        training itself
trainer.heads.gate       is it better?
trainer.heads.loop       online: claim → embed → fit → gate → publish
trainer.heads.mixing     offline material: token mixing (section 4.4)
trainer.heads.offline    offline: from files of prompts to a folder
trainer.heads.bench      online against offline on requests that neither has seen
"""
