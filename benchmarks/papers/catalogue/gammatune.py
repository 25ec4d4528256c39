"""GammaTune (Gautam, Shrestha, Annapareddy)."""

from __future__ import annotations

from benchmarks.papers.claims import Claim
from benchmarks.papers.entry import Paper, PaperEntry
from benchmarks.papers.experiments import arithmetic, gamma_rules

SPEC_BENCH = "SpecBench, one H100-80G, four Vicuna and Llama pairs, batch 1, initial lengths 1 to 8, 12, 16, 20, 24"

GAMMATUNE = Paper(
    "gammatune", "Token-Driven GammaTune: Adaptive Calibration for Enhanced Speculative Decoding",
    "Gautam, Shrestha, Annapareddy",
    (
        PaperEntry(
            "Table 1", "Inference time of seven models",
            "1.76 ms a token with vicuna-68m to 20.15 ms with vicuna-13b; 8.87 with Llama-3.2-1B, 16.65 with 3.1-8B, "
            "925.05 with 3.1-70B in int4. Section 1: ten times larger is two to three times slower.",
            ran="The table's own times, two by two: by how much ten times the parameters slow a model down.",
            experiment=arithmetic.MODEL_SIZES,
            claims=(
                Claim("A model ten times larger is 2 to 3 times slower at a token.", "slower_at_about_tenfold", 2, 3),
                Claim("So it is over all two models of the table.", "median_slower_per_tenfold", 2, 3),
            ),
            differs="No GPU here: the times are the paper's. Those of the pair that runs are in SpecDec++, Table 2.",
        ),
        PaperEntry(
            "Table 2", "Average speed-up over standard speculative decoding, ± deviation over initial γ",
            f"{SPEC_BENCH}: GammaTune 1.15 ± 0.05 ×, GammaTune+ 1.16 ± 0.03 ×, HFHeuristic 1.11 ± 0.12, "
            "AssistantThreshold 1.13 ± 0.06, SpecDecode 1.00 ± 0.23.",
            ran="The five methods from the paper's twelve initial lengths on recorded rounds, costs of an A100 with "
            "c = 0.13 (Vicuna-7B and a draft of 160M); speed is the mean over initial lengths.",
            experiment=gamma_rules.GAMMATUNE,
            claims=(
                Claim("GammaTune is faster than a fixed length, on average over initial lengths.", "gammatune_vs_sd",
                      1.0, question="Which γ rule on which costs?"),
                Claim("GammaTune's gain is 15 ± 5 %.", "gammatune_vs_sd", 1.10, 1.20),
                Claim("GammaTune+'s gain is 16 ± 3 %.", "gammatune_plus_vs_sd", 1.13, 1.19),
                Claim("GammaTune+ is faster than both heuristics.", "plus_vs_best_heuristic", 1.0),
                Claim("GammaTune's speed depends less on the initial length than a fixed one's.",
                      "gammatune_spread_less", 0.0),
                Claim("So does GammaTune+'s.", "gammatune_plus_spread_less", 0.0),
                Claim("GammaTune+ comes near the best length, which nobody had to find: 95 % of a fixed one chosen on "
                      "other texts.", "plus_vs_tuned_sd", 0.95),
                Claim("With constants chosen on other texts, as the fixed length is, GammaTune is faster than it.",
                      "gammatune_chosen_vs_tuned_sd", 1.0),
                Claim("So is GammaTune+.", "gammatune_plus_chosen_vs_tuned_sd", 1.0),
            ),
            differs="One pair and four domains in place of four pairs and SpecBench; time by a table of costs; "
            "AssistantThreshold has no initial length here.",
        ),
        PaperEntry(
            "Figure 1", "Average throughput by method and pair, deviations as error bars",
            f"{SPEC_BENCH}: GammaTune and GammaTune+ are ahead of the others on average; where GammaTune is below "
            "AssistantThreshold, GammaTune+ is above both.",
            ran="As Table 2, under the costs of two A100 with LLaMA-2-chat 7B and 70B, the profile nearest to the "
            "paper's Llama 8B and 70B.",
            experiment=gamma_rules.GAMMATUNE_LARGE,
            claims=(
                Claim("GammaTune is faster than HFHeuristic.", "gammatune_vs_hf", 1.0),
                Claim("GammaTune+ is faster than both heuristics.", "plus_vs_best_heuristic", 1.0),
            ),
            differs="As Table 2.",
        ),
        PaperEntry(
            "Figure 2", "Accepted tokens of each step (a), and the text with its tokens coloured (b)",
            "Llama-3.1-70B and 8B on a translation: easy, moderate and difficult stretches follow each other.",
            ran="Accepted tokens of each round of a draft of 8, and the correlation of a round's with the next one's, "
            "over texts. (b), a text in colours, is what `osd demo`'s report shows.",
            experiment=gamma_rules.REGIMES,
            claims=(Claim("Easy and difficult rounds come in stretches: a round's accepted tokens foretell the next "
                          "one's.", "correlation", 0.0),),
        ),
        PaperEntry(
            "Equations 1 to 6", "A model of what speculative decoding costs",
            "N ÷ (αγ + 1) target calls, γ as many draft calls, so cost = N ÷ (αγ + 1) · (c + γ) · T_draft, with "
            "α the accepted share of the drafted tokens; a larger γ lowers α; c is typically 4 to 10.",
            ran="The equations with α as counted, against what the replayed rounds took, for the paper's twelve γ.",
            experiment=gamma_rules.COST_MODEL,
            claims=(
                Claim("The model gives the cost to within 10 %.", "cost_off_by", at_most=0.10),
                Claim("A larger γ lowers the accepted share.", "alpha_at_24_vs_1", at_most=1.0),
            ),
        ),
    ),
)  # fmt: skip
