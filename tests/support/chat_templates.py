"""Chat templates in the manner of several families, and of some that lose a part of what they are given."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from osd.chat_template import ChatTemplate
from osd.demo import TARGET

HERMES = """{%- if tools %}<|system|>
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
{% endif %}{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>
{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{{ "\n" }}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

LLAMA = """{% if tools %}<|system|>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for m in messages %}<|{{ m.role }}|>

{% if m.tool_calls is defined %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("one call at a time") }}{% endif %}
{%- set call = m.tool_calls[0].function %}{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- else %}{{ m.content | trim }}{% endif %}{{ "\n" }}{% endfor %}{% if add_generation_prompt %}<|assistant|>

{% endif %}"""

MISTRAL = """{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}
{%- if m.role == "user" %}[INST] {{ m.content }}[/INST]
{%- elif m.role == "system" %}[INST] {{ m.content }}[/INST]
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception("ids have nine characters") }}{% endif %}
{{- {"name": call.function.name, "arguments": call.function.arguments, "id": call.id} | tojson }}
{%- if not loop.last %}, {% endif %}{% endfor %}]
{%- elif m.role == "tool" %}[TOOL_RESULTS] {"content": {{ m.content | tojson -}}
, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- else %} {{ m.content }}{% endif %}{% endfor %}"""

NEW_MISTRAL = MISTRAL.replace(
    """{{- {"name": call.function.name, "arguments": call.function.arguments, "id": call.id} | tojson }}
{%- if not loop.last %}, {% endif %}{% endfor %}]""",
    """[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}""",
).replace("{%- elif m.tool_calls %}[TOOL_CALLS] [", "{%- elif m.tool_calls %}")

XML = HERMES.replace(
    """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}""",
    """<function={{ call.function.name }}>{% for key, value in call.function.arguments.items() %}
<parameter={{ key }}>{{ value }}</parameter>{% endfor %}</function>""",
)

PARTS = """{% for m in messages %}<|{{ m.role }}|>
{% for part in m.content %}
{%- if part.type == "text" %}{{ part.text }}{% endif %}
{%- endfor %}{{ "\n" }}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""

BOTH = PARTS.replace(
    "{% for part in m.content %}", "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
).replace("{%- endfor %}{{", "{%- endfor %}{% endif %}{{")

NAMES = """{% for m in messages %}<|{{ m.role }}|>{% if m.name %} {{ m.name }}{% endif %}
{{ m.content }}
{% endfor %}"""

USERS = """{% for m in messages if m.role == "user" %}{{ m.content }}
{% endfor %}"""

DEAF = "<|user|>\nHello\n<|assistant|>\n"

THINKING = """{%- if tools %}<|system|>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ eos_token }}
{% endif %}{% for m in messages %}<|{{ m.role }}|>
{% set said = m.content or "" %}{% set thought = m.reasoning_content or "" %}
{%- if "</think>" in said %}{% set thought = said.split("</think>")[0].split("<think>")[-1].strip("\n") %}
{%- set said = said.split("</think>")[-1].lstrip("\n") %}{% endif %}
{%- if m.role == "assistant" and loop.last %}<think>
{{ thought.strip("\n") }}
</think>

{% endif %}{{ said }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

OPENING = """{% for m in messages %}{% set said = m.content or "" %}{% if m.role == "assistant" -%}
<|assistant|>{{ said.split("</think>")[-1] }}{{ eos_token }}
{%- else %}<|{{ m.role }}|>{{ said }}{% endif %}{% if m.reasoning_content %}{% endif %}{% endfor -%}
{% if add_generation_prompt %}<|assistant|><think>
{% endif %}"""

TRIMMED = """{% for m in messages %}<start>{{ "model" if m.role == "assistant" else m.role }}
{{ m.content | trim }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<start>model
{% endif %}"""

FORMS = {"hermes": HERMES, "llama3_json": LLAMA, "mistral": MISTRAL, "mistral, newer": NEW_MISTRAL}


def template(source: str) -> ChatTemplate:
    """The template over the tokenizer that ships with osd."""
    return ChatTemplate(tokenizer(), source)


@cache
def tokenizer() -> Any:
    """The tokenizer that ships with osd."""
    return AutoTokenizer.from_pretrained(TARGET)


def written(folder: Path, source: str) -> str:
    """Write a template to a file; its name."""
    (folder / "template.jinja").write_text(source)
    return str(folder / "template.jinja")
