"""Why a draft is good or bad: `osd drafts examine`."""
