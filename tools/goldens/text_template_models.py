"""Chat templates in the manner of released models, written for these goldens: what they are made of, shortened.

Each is rendered with every conversation of CONVERSATIONS, with and without TOOLS.
"""

LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2025" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{#- A system message is taken out, wherever text comes from. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n" }}
{%- endif %}
{{- "Today Date: " ~ date_string ~ "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no first user message to put the tools into") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first_user_message + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("one tool call at a time") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {%- if builtin_tools is defined and call.name in builtin_tools %}
            {{- "<|python_tag|>" + call.name + ".call(" }}
            {%- for key, value in call.arguments | items %}{{- key + '="' ~ value ~ '"' }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
            {{- ")<|eom_id|>" }}
        {%- else %}
            {{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

GLM = """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- elif content is none -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set ns.last_user_index = loop.index0 -%}{%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}
    {%- set reasoning_content = m.reasoning_content %}
{%- elif '</think>' in content %}
    {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if ((clear_thinking is defined and not clear_thinking) or loop.index0 > ns.last_user_index) and reasoning_content -%}
{{ '<think>' + reasoning_content.strip() + '</think>' }}
{%- else -%}
{{ '</think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\\n' + content.strip() }}
{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if m.content is string -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\\n<tool_response>\\n' }}{{- m.content }}{{- '\\n</tool_response>' }}
{%- else -%}
<|observation|>{% for tr in m.content %}

<tool_response>
{{ tr.output if tr.output is defined else tr }}
</tool_response>{% endfor -%}
{% endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>{{- '</think>' if (enable_thinking is defined and not enable_thinking) else '<think>' -}}
{%- endif -%}
"""

GEMMA = """{%- macro describe(properties, required) -%}
    {%- set ns = namespace(found_first=false) -%}
    {%- for key, value in properties | dictsort -%}
        {%- if ns.found_first %},{% endif -%}
        {%- set ns.found_first = true -%}
        {{ key }}:{
        {%- if value['description'] -%}description:<|"|>{{ value['description'] }}<|"|>,{%- endif -%}
        {%- if value['type'] | upper == 'OBJECT' -%}
            properties:{ {{- describe(value['properties'] | default({}), value['required'] | default([])) -}} },
            {%- if value['required'] -%}
                required:[{%- for item in value['required'] -%}<|"|>{{- item -}}<|"|>{%- if not loop.last %},{% endif -%}{%- endfor -%}],
            {%- endif -%}
        {%- elif value['type'] | upper == 'ARRAY' -%}
            {%- if value['items'] is mapping and value['items'] -%}
                items:{ {%- for k, v in value['items'] | dictsort -%}{%- if v is not none %}{{ k }}:{{ argument(v) }}{%- if not loop.last %},{% endif %}{%- endif -%}{%- endfor -%} },
            {%- endif -%}
        {%- endif -%}
        type:<|"|>{{ value['type'] | upper }}<|"|>{{ '!' if key in required }}}
    {%- endfor -%}
{%- endmacro -%}
{%- macro argument(value, quote=true) -%}
    {%- if value is string -%}{{ '<|"|>' + value + '<|"|>' if quote else value }}
    {%- elif value is boolean -%}{{ 'true' if value else 'false' }}
    {%- elif value is mapping -%}{
        {%- for key, inner in value | dictsort -%}{{ key }}:{{ argument(inner, quote) }}{%- if not loop.last %},{% endif %}{%- endfor -%}}
    {%- elif value is sequence -%}[{%- for item in value -%}{{ argument(item, quote=quote) }}{%- if not loop.last %},{% endif %}{%- endfor -%}]
    {%- else -%}{{ value }}
    {%- endif -%}
{%- endmacro -%}
{%- macro strip_thinking(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('</think>') -%}
        {%- if '<think>' in part -%}{%- set ns.result = ns.result + part.split('<think>')[0] -%}
        {%- else -%}{%- set ns.result = ns.result + part -%}{%- endif -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}
{%- set loop_messages = messages -%}
{{ bos_token }}
{%- if (enable_thinking is defined and enable_thinking) or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\\n' -}}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set loop_messages = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] %}
        {{- '<|tool>' -}}
        {{- 'declaration:' + tool['function']['name'] + '{' -}}
        {{- describe(tool['function']['parameters']['properties'], tool['function']['parameters'].get('required', [])) -}}
        {{- '}<tool|>' -}}
    {%- endfor %}
    {{- '<turn|>\\n' -}}
{%- endif %}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\\n' }}
    {%- if message['tool_calls'] -%}
        {%- for tool_call in message['tool_calls'] -%}
            {{- '<|tool_call>call:' + tool_call['function']['name'] + argument(tool_call['function']['arguments'], quote=true) + '<tool_call|>' -}}
        {%- endfor -%}
    {%- endif -%}
    {%- if message['content'] is string -%}
        {{- strip_thinking(message['content']) if role == 'model' else message['content'] | trim -}}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- elif item['type'] == 'image' -%}{{ '\\n\\n<|image|>\\n\\n' }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}
"""

MINIMAX = """{# 工具调用 #}
{%- set toolcall_begin_token = '<minimax:tool_call>' -%}
{%- set toolcall_end_token = '</minimax:tool_call>' -%}
{%- macro render_tool_namespace(name, tool_list) -%}
{%- for tool in tool_list -%}
<tool>{{ tool.function | tojson(ensure_ascii=False) }}</tool>
{% endfor -%}
{%- endmacro -%}
{%- set system_messages = messages | selectattr('role', 'equalto', 'system') | list -%}
{%- set conversation = messages | rejectattr('role', 'equalto', 'system') | list -%}
]~!b[]~b]system
{{ system_messages | map(attribute='content') | map('trim') | join('\\n') if system_messages else default_system | default('You help.') }}
{%- if tools %}
{{ '\\n\\n' ~ '# Tools' ~ '\\n<tools>\\n' -}}
{{ render_tool_namespace('functions', tools) -}}
</tools>
{%- endif %}[e~[
{% for message in conversation -%}
{%- if message.role == 'assistant' -%}
]~b]ai
{{ message.content }}
{%- for call in message.tool_calls | default([], true) -%}
{%- if loop.first %}
{{ toolcall_begin_token }}{% endif %}
<invoke name="{{ call.function.name }}">
{%- for k, v in call.function.arguments.items() %}
<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>
{%- endfor %}
</invoke>{% if loop.last %}
{{ toolcall_end_token }}{% endif %}
{%- endfor -%}
[e~[
{% elif message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}]~b]tool{%- endif %}
<response>{{ message.content }}</response>
{%- if loop.last or loop.nextitem.role != 'tool' %}[e~[
{% endif -%}
{%- else -%}
]~b]{{ message.role }}
{{ message.content }}[e~[
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
]~b]ai
<think>
{% endif -%}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"%s": "%s"' % (key, val) }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if tool_call.id is defined and tool_call.id | length != 9 %}{{- raise_exception("ids have 9 characters") }}{%- endif %}
            {{- ', "id": "' ~ tool_call.id | default("%09d" % loop.index) ~ '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] in ("tool_results", "tool") %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("only user, assistant and tool roles, with an optional first system message") }}
    {%- endif %}
{%- endfor %}
"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}\
{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}\
{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}\
{{ bos_token }}{{ ns.system_prompt }}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{ '<\uff5cUser\uff5c>' + message['content'] }}{%- endif %}\
{%- if message['role'] == 'assistant' and 'tool_calls' in message and message['tool_calls'] %}{%- set ns.is_tool = false -%}\
{%- for tool in message['tool_calls'] %}\
{%- if not ns.is_first %}{{ '<\uff5cAssistant\uff5c><\uff5ctool\u2581calls\u2581begin\uff5c>' + tool['type'] + '<\uff5ctool\u2581sep\uff5c>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] | tojson + '\\n' + '```' }}{%- set ns.is_first = true -%}\
{%- else %}{{ '\\n' + tool['type'] + '<\uff5ctool\u2581sep\uff5c>' + tool['function']['name'] }}{%- endif %}{%- endfor %}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none and message['content'] %}\
{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{ '<\uff5cAssistant\uff5c>' + content + '<\uff5cend\u2581of\u2581sentence\uff5c>' }}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}\
{%- if ns.is_output_first %}{{ '<\uff5ctool\u2581outputs\u2581begin\uff5c>' + message['content'] }}{%- set ns.is_output_first = false %}\
{%- else %}{{ '\\n' + message['content'] }}{%- endif %}{%- endif %}{%- endfor -%}\
{% if ns.is_tool %}{{ '<\uff5ctool\u2581outputs\u2581end\uff5c>' }}{% endif %}\
{% if add_generation_prompt and not ns.is_tool %}{{ '<\uff5cAssistant\uff5c><think>\\n' }}{% endif %}"""

QWEN_VL = """{%- set counter = namespace(value=0) %}
{%- macro content_of(content, count, is_system=false) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'image' in item or 'image_url' in item or item.type == 'image' %}
                {%- if is_system %}{{- raise_exception('no images in the system message') }}{%- endif %}
                {%- if count %}{%- set counter.value = counter.value + 1 %}{%- endif %}
                {%- if add_vision_id %}{{- 'Picture ' ~ counter.value ~ ': ' }}{%- endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in item %}
                {{- item.text }}
            {%- else %}
                {{- raise_exception('unexpected item in content') }}
            {%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- else %}
        {{- raise_exception('unexpected content') }}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('no messages') }}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set content = content_of(message.content, false) | trim %}
        {%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
            {%- set ns.multi_step_tool = false %}
            {%- set ns.last_query_index = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = content_of(message.content, true, message.role == 'system') | trim %}
    {%- if message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- elif loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'assistant' and message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- ('\\n\\n' if loop.first and content else '\\n' if not loop.first else '') ~ '<tool_call>\\n<function=' ~ tool_call.name ~ '>\\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for name, value in tool_call.arguments | items %}
                    {{- '<parameter=' + name + '>\\n' }}
                    {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                    {{- value }}{{- '\\n</parameter>\\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif loop.index0 > ns.last_query_index or message.role != 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- else %}
        {%- generation %}{{- '<|im_start|>assistant\\n' + content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + ('<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '<think>\\n') }}
{%- endif %}
"""

MODELS = [LLAMA, GLM, GEMMA, MINIMAX, MISTRAL, DEEPSEEK, QWEN_VL]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds 'things' & <places> \u4e2d",
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {"type": "object", "properties": {"city": {"type": "string", "description": "a city"}}, "required": ["city"]},
                    "tags": {"type": "array", "items": {"type": "string", "nullable": True}},
                    "limit": {"type": "integer"},
                },
                "required": ["where"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"type": "function", "function": {"name": "find", "arguments": {"where": {"city": "K\u00f6ln"}, "tags": ["a", "b"], "limit": 3, "q": "x \"y\"", "on": True}}}
CONVERSATIONS = [
    [{"role": "user", "content": "Hi "}],
    [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
        {"role": "user", "content": " And 2+2? "},
    ],
    [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "reasoning_content": "look it up", "tool_calls": [CALL]},
        {"role": "tool", "content": "{\"found\": 1}"},
        {"role": "tool", "content": "here"},
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": "Thanks"},
    ],
    [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}]},
        {"role": "assistant", "content": "<think>see</think>A cat.", "tool_calls": [CALL, {"type": "function", "function": {"name": "now", "arguments": {}}}]},
        {"role": "tool", "content": [{"output": "9:00"}, "late"]},
    ],
]
MORE = [{}, {"enable_thinking": False, "clear_thinking": False, "builtin_tools": ["find", "code_interpreter"], "date_string": "today"}]


def contexts():
    """Every conversation without and with tools, MORE in turn."""
    for at, messages in enumerate(CONVERSATIONS):
        for has_tools, tools in enumerate((None, TOOLS)):
            more = MORE[(at + has_tools) % 2]
            context = {"messages": messages, "tools": tools, "documents": None}
            yield context | {"add_generation_prompt": not more, "bos_token": "<s>", "eos_token": "</s>"} | more
