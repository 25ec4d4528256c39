"""Online Speculative Decoding (Liu, Hu, Bailis, Cheung, Deng, Stoica, Zhang)."""

from __future__ import annotations

from benchmarks.papers.catalogue.osd_figures import FIGURES, VICUNA
from benchmarks.papers.claims import Claim
from benchmarks.papers.entry import Paper, PaperEntry
from benchmarks.papers.experiments import (
    arithmetic,
    distilled,
    distilled_drafts,
    given_acceptance,
    lengths,
    medusa,
    updates,
)

OSD = Paper(
    "osd", "Online Speculative Decoding", "Liu, Hu, Bailis, Cheung, Deng, Stoica, Zhang",
    (
        PaperEntry(
            "Table 1", "Acceptance after two epochs: labels, teacher, student and mixed sampling",
            "Vicuna-7B: original 0.28, 0.58, 0.38, 0.57 (Spider, Gsm8k, Code, Alpaca), labels 0.74, 0.74, 0.65, 0.68, "
            "teacher 0.76, 0.75, 0.65, 0.67, student 0.62, 0.67, 0.51, 0.63, mixed 0.70, 0.73, 0.61, 0.65; T5-XL with "
            "teacher sampling 0.78, 0.62, 0.81, 0.63 from 0.13, 0.29, 0.28, 0.39.",
            ran="`benchmarks distil`: the draft as it is, fine-tuned on the target's tokens, and distilled behind the "
                "target's, "
            "its own and mixed tokens, two epochs on each data set; α on the target's answers to other prompts, greedy "
            "(full: at temperature 1, too), paired over texts.",
            experiment=distilled.TABLE,
            claims=(
                Claim("Teacher sampling raises α by 0.1 or more.", "tf_minus_original", 0.1),
                Claim("It is better than student sampling.", "tf_minus_sf", 0.0),
                Claim("It is better than mixed sampling.", "tf_minus_mixf", 0.0),
                Claim("It is at least as good as fine-tuning on labels (to 0.01).", "tf_minus_ft", -0.01),
            ),
            differs="T5 is a run of its own: `--target` and `--draft` name the small pair that "
            "`python -m benchmarks encoder-decoder` makes.",
        ),
        PaperEntry(
            "Table 2", "Latency and speed-up at a given acceptance",
            "One A100-80G, batch 1, llama.cpp: c = 0.08 1.28, 1.44, 1.65, 2.01, 2.63 × at α = 0.5 to 0.9; c = 0.13 "
            "0.95, 1.17, 1.30, 1.68, 2.55 ×.",
            ran="After each real pass of the draft its token is replaced, with chance α by the one that the target is "
            "known to say, else by another; k = 8; each prompt with every α and with the target alone, by turns, on "
            "the "
            "machine that runs.",
            experiment=given_acceptance.SPEEDS,
            claims=(
                Claim("From α = 0.5 to 0.9 speculation becomes at least twice as fast (2.05 and 2.68 × there).",
                      "speed_at_0.9_vs_0.5", 2.0),
                Claim("At α = 0.9 it is faster than the target alone.", "speed_up_0.9", 1.0),
                Claim("At α = 0.5 it hardly is, or is not: at most 1.28 ×.", "speed_up_0.5", at_most=1.28),
                Claim("What is measured is 90 % of Eq. 1 with the measured c, or more.", "least_of_eq_1", 0.9),
            ),
            differs="Another c: that of the pair and machine, which the table of results tells.",
        ),
        PaperEntry(
            "Table 3", "Latency and speed-up on five sets, distilled drafts",
            "Vicuna-33B 2.17, 1.89, 1.92, 1.69, 1.51 × (Spider, Gsm8k, Alpaca, Code, Arena), Vicuna-7B 1.63, 1.60, "
            "1.47, 1.42, 1.36 ×.",
            ran="A draft distilled on each data set (teacher sampling, forward KL, two epochs) decodes prompts of it "
            "that it has not learned, k = 5; by turns with the draft as it was and with the target alone, on the "
            "machine that runs.",
            experiment=distilled_drafts.SPEEDS,
            claims=(
                Claim("It is faster than the target alone on every data set, by 1.36 × or more.", "least_speed_up",
                      1.36),
                Claim("It is 1.42 × as fast or faster on average.", "speed_up", 1.42),
                Claim("Distillation makes speculation faster.", "after_vs_before", 1.0),
            ),
            differs="Another pair, of which Table 2's results tell c; in the paper c is 0.08 and "
            "0.13.",
        ),
        PaperEntry(
            "Table 4", "OSD and Medusa",
            "Medusa-7B 1.34 × on Spider and 2.03 × on Arena, which is like what its heads were trained on; with OSD "
            "2.01 and 2.38 ×; a draft with OSD 2.17 and 1.51 ×.",
            ran="Four Medusa heads of random weights learn one data set while it is served (familiar traffic); then "
            "they stay, or learn while that set or another one (new traffic) is served, an update every 8 requests; "
            "the small draft learns in the same way. Other prompts of both sets by turns with the target alone: heads "
            "as trees, the draft as chains of 5.",
            experiment=medusa.MEDUSA_TABLE,
            claims=(
                Claim("Learning makes Medusa faster on new traffic (1.5 × there).", "osd_vs_medusa_new", 1.0,
                      question="Medusa with and without learning?"),
                Claim("It does so by a tenth or more.", "osd_vs_medusa_new", 1.1),
                Claim("It makes it faster on familiar traffic, too.", "osd_vs_medusa_familiar", 1.0),
                Claim("It saves a tenth or more of the rounds on new traffic, whatever machine runs.",
                      "rounds_saved_new", 0.1),
                Claim("On new traffic a draft with OSD is faster than Medusa with OSD.", "draft_vs_medusa_osd_new",
                      1.0),
                Claim("On familiar traffic Medusa, as it is, is faster than a draft with OSD.",
                      "medusa_vs_draft_familiar", 1.0),
            ),
            differs="Heads began at random, and familiar traffic is the second data set, a few hundred answers, where "
            "Medusa-v1's heads learned ShareGPT; all of a head learns, not its linear layer alone.",
        ),
        PaperEntry(
            "Table 5", "Bytes of weights that are read for 128 tokens",
            "LLaMA-160M (0.32 GB) and Vicuna-7B (14 GB): 1792 GB without speculation, 1320 with (1.4 tokens a pass), "
            "573 "
            "with OSD (3.4).",
            ran="The formulas with the paper's numbers.", experiment=arithmetic.BANDWIDTH,
            claims=(
                Claim("The table follows from its formulas, to 1 %.", "off_by", at_most=0.01),
                Claim("OSD reads less than half of what speculation without learning reads.", "osd_of_vsd",
                      at_most=0.5),
            ),
        ),
        PaperEntry(
            "Table 6", "Tokens that improve the most",
            "SELECT, FROM, WHERE, COUNT on Spider; >>, << and = on Gsm8k; python, def and import on Code; This, "
            "provides, depends on Alpaca: they align with the data.",
            ran="The distilled drafts of Table 3 read the target's answers to prompts that they have not learned; "
            "gains of the 100 most frequent tokens, the fifteen best of each data set.",
            experiment=distilled_drafts.TOKENS,
            claims=(
                Claim("Tokens that gain most are a data set's own: half of its fifteen best by recall, or more, are "
                      "not among another set's.", "own_tokens_among_best", 0.5),
            ),
        ),
        PaperEntry(
            "Table 7", "Measured and theoretical speed-up",
            "One A100-80G, k = 8: theory 1.31 to 3.12 × (c = 0.08) and 0.98 to 3.00 × (c = 0.13), measured 1.28 to "
            "2.63 "
            "and 0.95 to 2.55 ×: it closely aligns.",
            ran="Eq. 1 with the table's α, c and k, beside both printed rows.",
            experiment=arithmetic.MEASURED_AND_EXPECTED,
            claims=(
                Claim("The 7B pair's theory is Eq. 1 at k = 8 and c = 0.13, to 2 %.", "theory_off_by_7b", at_most=0.02),
                Claim("The 33B pair's is Eq. 1 at k = 8 and c = 0.08, to 2 %.", "theory_off_by_33b", at_most=0.02),
                Claim("What was measured aligns with the theory: 90 % of it or more.", "least_measured_of_theory", 0.9),
            ),
            differs="Nothing is timed here.",
        ),
        PaperEntry(
            "Table 8", "Length of the answer and speed-up",
            "Vicuna-7B, LLaMA-160M, prefix 512, k = 5: 1.22 to 1.29 × at α = 0.5, 2.40 to 2.70 × at α = 0.9, from 16 "
            "to 2048 tokens: it rises with the length at each α, and more with α.",
            ran="As Table 2 with k = 5, prompts of 512 tokens (small: 48) and answers of 16 to 1024 tokens (small: "
            "64), which go on past end tokens; time from the first tokens on, so that reading the prompt is left out.",
            experiment=lengths.BY_LENGTH,
            claims=(
                Claim("The longest answers gain more than the shortest, on average over α.", "gain_of_length", 0.0),
                Claim("They do at each α.", "least_gain_of_length", 0.0),
                Claim("α matters more: from 0.5 to 0.9 it brings more than the length does.",
                      "gain_of_alpha_less_that_of_length", 0.0),
            ),
            differs="1024 tokens at most: 512 and 2048 are more positions than the reference target has.",
        ),
        PaperEntry(
            "Table 9", "Time of an update beside inference (A.9.2; its caption repeats Table 8's)",
            "A100-80G: eight target forwards of 128 tokens 24.96 s, an update 0.12 s, 208 times less (160M, 7B); 55.12 "
            "and 0.67 s, 82.3 times (1.1B, 33B).",
            ran="Eight answers of the target alone to prompts of 64 tokens, and a forward, backward and AdamW step of "
            "the draft over texts as long, on the machine that runs.",
            experiment=updates.UPDATE_TIMES,
            claims=(
                Claim("An update takes far less than the target's answers: a tenth or less.", "answers_vs_update", 10),
                Claim("It takes 82 times less.", "answers_vs_update", 82),
            ),
            differs="On a CPU a pass over many tokens is not as cheap, beside one over few, as on a GPU.",
        ),
        *FIGURES,
        PaperEntry(
            "Distances", "Forward KL, reverse KL, JSD (section 5.1)",
            f"{VICUNA}: reverse KL and JSD parallel or underperform forward KL.",
            ran="`benchmarks distil`: the draft as it is, fine-tuned on the target's tokens, and distilled behind the "
                "target's, "
            "its own and mixed tokens, two epochs on each data set; α on the target's answers to other prompts, greedy "
            "(full: at temperature 1, too), paired over texts.",
            experiment=distilled.TABLE,
            claims=(
                Claim("Reverse KL is no better than forward KL by more than 0.01, greedy.", "tf_minus_reverse_kl",
                      -0.01, question="Which divergence, greedy and sampled?"),
                Claim("JSD is no better than forward KL by more than 0.01, greedy.", "tf_minus_jsd", -0.01,
                      question="Which divergence, greedy and sampled?"),
                Claim("At temperature 1 reverse KL is no better than forward KL by more than 0.01 (full alone).",
                      "tf_minus_reverse_kl_sampled", -0.01,
                      question="Which divergence, greedy and sampled?"),
                Claim("At temperature 1 JSD is no better than forward KL by more than 0.01 (full alone).",
                      "tf_minus_jsd_sampled", -0.01,
                      question="Which divergence, greedy and sampled?"),
            ),
        ),
        PaperEntry(
            "A.3", "Speed-up over speculative decoding that a better α brings",
            "From Table 1, k = 5: 2.42, 1.43, 1.64, 1.22 × for Vicuna-7B and 3.06, 1.76, 2.72, 1.55 × for T5-XL.",
            ran="The formula with Table 1's α.", experiment=arithmetic.EXPECTED_SPEED_UPS,
            claims=(Claim("The numbers follow from Table 1, to 1 %.", "off_by", at_most=0.01),),
        ),
        PaperEntry(
            "A.4", "FLOPs", "The target takes 18.75 × (Vicuna-7B) and 12.6 × (T5-XL) the draft's FLOPs, its training "
            "included; serving LMSYS-Chat-1M with a 30B model takes 5.5 GFLOP/s of eight A100's 2,496 TFLOP/s: under "
            "1 %.",
            ran="The formulas with the paper's numbers.", experiment=arithmetic.FLOPS,
            claims=(
                Claim("Both ratios follow from Eq. 6, to 1 %.", "off_by", at_most=0.01),
                Claim("Drafting and learning take less than a tenth of the target's FLOPs.", "least_ratio", 10),
                Claim("LMSYS-Chat-1M took 5.5 GFLOP/s.", "lmsys_gflops", 5.0, 6.0),
                Claim("Utilisation is under 1 %.", "utilisation", at_most=0.01),
            ),
        ),
    ),
)  # fmt: skip
