"""Chat templates that tell a model of tools, each in its family's form."""

_CHATML_TURNS = """{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' -}}
{%- elif not (loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
CALL
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""

_CHATML_SYSTEM = """{%- if tools -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\n\n' -}}{%- endif -%}
{{- '<tools>' -}}
{%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\n</tools><|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- endif -%}"""

_HERMES_CALL = """{%- if not loop.first or message.content -%}{{- '\n' -}}{%- endif -%}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson -}}{{- '}\n</tool_call>' -}}"""

_XML_CALL = """{{- '<tool_call>\n<function=' + call.function.name + '>' -}}
{%- for key, value in call.function.arguments.items() -%}
{{- '\n<parameter=' + key + '>' + value + '</parameter>' -}}
{%- endfor -%}{{- '\n</function>\n</tool_call>' -}}"""

HERMES = _CHATML_SYSTEM + _CHATML_TURNS.replace("CALL", _HERMES_CALL)
XML = _CHATML_SYSTEM + _CHATML_TURNS.replace("CALL", _XML_CALL)

LLAMA_TOOLS = """{{- '<|begin|>' -}}
{%- if tools -%}
{{- '<|start_header|>system<|end_header|>\n\nTools:' -}}
{%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}{{- '<|eot|>' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|start_header|>' + ('ipython' if message.role == 'tool' else message.role) + '<|end_header|>\n\n' -}}
{%- if message.tool_calls -%}
{%- set call = message.tool_calls[0].function -%}
{{- '{"name": "' + call.name + '", "parameters": ' -}}{{- call.arguments | tojson -}}{{- '}' -}}
{%- else -%}{{- message.content | trim -}}{%- endif -%}{{- '<|eot|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header|>assistant<|end_header|>\n\n' -}}{%- endif -%}"""

CONTROL_TOKEN = LLAMA_TOOLS.replace('{{- \'{"name"', '{{- \'[INST]{"name"')
"""Calls begin with a control token."""
