"""Template goldens: sources rendered by jinja2 as Hugging Face `transformers` sets it up. See text.py."""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

import text_template_models as models

NOW = 1_700_000_000
MESSAGES = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "What's <b>2+2</b>? \u00e9\u4f60"},
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4", "tool_calls": []},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says 'sun' & \"rain\"\t<now>",
            "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}},
        },
    }
]
CONTEXT = {
    "messages": MESSAGES,
    "tools": None,
    "documents": None,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "n": 7,
    "x": 2.5,
    "items": ["b", "a", "C"],
    "nested": {"k": [1, 2, {"deep": None}], "t": True, "name": "N"},
    "text": " one two  three ",
}

# One snippet a line; all with CONTEXT.
SNIPPETS = r"""
{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 6 / 3 }}
{{ 1.5 + 1 }} {{ 1e3 }} {{ 1.0 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1_000 }}
{{ -n }} {{ +n }} {{ -2 ** 2 }} {{ n - -1 }} {{ -n|abs }}
{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ true ~ 1.5 }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ [1] + [2, 'x'] }} {{ 2 ~ 3 }}
{{ 2 ~ 3 + 4 }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == "a" }} {{ [1, 2] == [1, 2] }} {{ (1, 2) == [1, 2] }} {{ none == false }} {{ 'a' < 'b' }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }}
{{ 'a' in 'cat' }} {{ 'z' not in 'cat' }} {{ 1 in [1, 2] }} {{ 'k' in nested }} {{ 'q' in missing }} {{ not 1 in [2] }}
{{ true and 'x' }} {{ '' or 'y' }} {{ not '' }} {{ 0 or none or [] }} {{ 1 and 0 and 2 }} {{ not not 1 }} {{ true or missing.x }}
{{ 'yes' if n > 5 else 'no' }} {{ 'x' if false }}| {{ 1 if false else 2 if false else 3 }} {{ ('a' if n else 'b') ~ 'c' }}
{{ none }} {{ true }} {{ False }} {{ None }} {{ missing }}| {{ [none, true, 1.0, 'it\'s', "q\"", 'a\nb\\'] }} {{ {'a': 1, 'b': [2]} }} {{ (1,) }} {{ (1, 2) }} {{ () }}
{{ ['\u00e9', '\x07', '\u200b', '\U0001f600', "both ' and \""] }}
{{ 'tab\tnl\nq\'\"\\ \x41\u0042\U00000043 \101 \q end' }}
{{ 'adjacent' ' strings' }}
{{ messages[0].role }} {{ messages[-1]['role'] }} {{ messages[99] }}| {{ messages.0.role }} {{ nested.k.2.deep }} {{ nested['k'][1] }} {{ nested.missing }}|
{{ missing.attribute }}
{{ missing['item'] }}
{{ none.attribute }}|
{{ missing + 1 }}
{{ 1 + 'a' }}
{{ none < 1 }}
{{ 'abc' - 1 }}
{{ 1 / 0 }}
{{ nested.name() }}
{{ items[0:2] }} {{ items[::-1] }} {{ items[1:] }} {{ items[:-1] }} {{ items[-2:] }} {{ items[::2] }} {{ items[5:] }} {{ items[2:0:-1] }} {{ items[-1:-9:-1] }}
{{ 'h\u00e9llo'[1] }} {{ 'h\u00e9llo'[1:3] }} {{ 'h\u00e9llo'[::-1] }} {{ 'h\u00e9llo'[-2:] }} {{ 'h\u00e9llo'[10:] }}| {{ 'h\u00e9llo'[::2] }} {{ (1, 2, 3)[1:] }}
{{ text.strip() }}| {{ text.lstrip() }}| {{ text.rstrip() }}| {{ 'xxaxbxx'.strip('x') }} {{ 'abcba'.lstrip('ab') }} {{ '\u00e9a\u00e9'.strip('\u00e9') }}
{{ text.split() }} {{ text.split(' ') }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ text.split(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a--b--c'.split('--')[-1] }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ 'a b c'.rsplit() }} {{ 'aaa'.rsplit('aa') }} {{ 'aaa'.split('aa') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith(()) }} {{ 'abc'.startswith('') }}
{{ 'aXb'.upper() }} {{ 'aXb'.lower() }} {{ 'hello wORLD x-y'.title() }} {{ 'hELLO'.capitalize() }} {{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ "they're".title() }}
{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('z') }} {{ 'banana'.count('an') }} {{ ', '.join(items) }} {{ '\u00e9x'.find('x') }}
{{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ ' \t'.isspace() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}
{{ nested.items() | list }} {{ nested.keys() | list }} {{ nested.values() | list }} {{ nested.get('t') }} {{ nested.get('q') }} {{ nested.get('q', 5) }}
{{ items.index('a') }} {{ items.count('b') }}
{{ items.append('x') }}
{{ nested.update({}) }}
{{ items.index('zzz') }}
{{ text | trim }}| {{ 'xax' | trim('x') }} {{ items | length }} {{ text | length }} {{ nested | count }} {{ missing | length }} {{ '\u00e9' | length }}
{{ none | length }}
{{ 5 | trim }} {{ none | upper }} {{ 'abc' | upper | lower | capitalize }} {{ 'hello wORLD x-y (z) it\'s' | title }}
{{ items | join }} {{ items | join(', ') }} {{ [1, none, 2.5] | join('-') }} {{ messages | join('|', attribute='role') }} {{ 'abc' | join('.') }}
{{ missing | default('d') }} {{ '' | default('d') }}| {{ '' | default('d', true) }} {{ none | default('d') }} {{ false | d('e', boolean=true) }} {{ missing | default }}|
{{ items | first }} {{ items | last }} {{ [] | first }}| {{ 'xyz' | last }} {{ items | list }} {{ 'ab' | list }} {{ nested | list }} {{ items | reverse | list }} {{ 'abc' | reverse }}
{{ items | sort }} {{ items | sort(reverse=true) }} {{ items | sort(case_sensitive=true) }} {{ messages | sort(attribute='role') | map(attribute='role') | list }} {{ [3, 1.5, true] | sort }}
{{ ['a', 'A', 'b'] | unique | list }} {{ [1, 2, 3] | sum }} {{ [{'v': 1}, {'v': 2}] | sum(attribute='v') }} {{ [3, 1, 2] | min }} {{ ['b', 'C', 'a'] | max }} {{ [] | min }}|
{{ messages | map(attribute='role') | join(',') }} {{ items | map('upper') | list }} {{ ['1', '2'] | map('int') | sum }} {{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ [{}] | map(attribute='q', default='z') | list }}
{{ [1, 2, 3, 4] | select('even') | list }} {{ [1, 2, 3] | reject('equalto', 2) | list }} {{ ['', 'a', none] | select | list }} {{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }} {{ messages | rejectattr('role', 'in', ['user', 'system']) | list | length }} {{ messages | selectattr('tool_calls', 'defined') | list | length }}
{{ nested | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) }}
{{ nested | items | list }} {{ missing | items | list }}
{{ '42' | int }} {{ '4.9' | int }} {{ 'x' | int }} {{ 'x' | int(-1) }} {{ 'ff' | int(0, 16) }} {{ 3.99 | int }} {{ -3.99 | int }} {{ '1.5' | float }} {{ 'q' | float(2.0) }} {{ true | int }} {{ ' 12 ' | int }} {{ none | int }}
{{ -5 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 5 | round }}
{{ 'a\nb\n\nc' | indent }}| {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(2, blank=true) }} {{ 'a\nb' | indent('> ') }}
{{ 'aXb' | replace('X', '-') }} {{ 'aaa' | replace('a', 'b', 1) }} {{ 12 | string + 'x' }} {{ '<a>' | safe }} {{ 1.0 | string }}
{{ tools | tojson }} {{ nested | tojson }} {{ 'a"b\\c\n\t\r\b\f\x01\x7f\u00e9\U0001f600' | tojson }} {{ 'a\x7f\u00e9\U0001f600' | tojson(ensure_ascii=true) }}
{{ nested | tojson(indent=2) }} {{ [] | tojson(indent=4) }} {{ {} | tojson }} {{ [1, [2, {'a': []}]] | tojson(indent=1) }} {{ (1, 2.0, 1e20, true, none) | tojson }}
{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ {'b': 1, 'a': 2} | tojson(separators=(',', ':')) }} {{ '<script>&' | tojson }}
{{ missing | tojson }}
{{ n is defined }} {{ q is defined }} {{ q is not defined }} {{ q is undefined }} {{ none is none }} {{ n is number }} {{ n is integer }} {{ x is float }} {{ 'a' is string }} {{ nested is mapping }} {{ items is sequence }} {{ items is iterable }} {{ n is iterable }} {{ true is boolean }} {{ true is true }} {{ false is false }} {{ 1 is true }} {{ text is sequence }} {{ nested is sequence }} {{ nested is iterable }} {{ none is iterable }}
{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(4) }} {{ 'a' is equalto 'a' }} {{ 'a' is eq('b') }} {{ 1 is ne 2 }} {{ 2 is gt 1 }} {{ 2 is ge 2 }} {{ 1 is lt 2 }} {{ 1 is le 0 }} {{ 'a' is in ['a'] }} {{ none is sameas none }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ range is callable }} {{ 'upper' is filter }} {{ 'odd' is test }}
{{ n is divisibleby 7 and n is odd or false }} {{ not n is even }} {{ (n is odd) == true }} {{ 'x' if n is odd else 'y' }} {{ n is not odd }} {{ n + 1 is even }}
{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ dict(a=1, b=2) }} {{ dict(nested, t=false).t }} {{ namespace(a=1).a }}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}:{{ m.role }} {% endfor %}
{% for m in messages %}{{ loop.previtem.role if loop.previtem }}<{{ m.role }}>{{ loop.nextitem.role if loop.nextitem is defined }} {% endfor %}
{% for i in range(4) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %} {% for i in [] %}x{% else %}empty{% endfor %} {% for c in 'ab' %}{{ c }}.{% endfor %} {% for k in nested %}{{ k }},{% endfor %} {% for q in missing %}x{% else %}none{% endfor %}
{% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %} {% for a, b in [[1, 2], (3, 4)] %}{{ a + b }} {% endfor %} {% for (a, b) in [[1, 2]] %}{{ a }}{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {{ m.content }};{% endfor %} {% for x in [1, 2, 3] if x > 5 %}{% else %}nothing{% endfor %}
{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in [1, 2] %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}
{% set v = 1 %}{% for i in [1, 2] %}{% set v = v + i %}{{ v }} {% endfor %}{{ v }} {% if true %}{% set v = 9 %}{% endif %}{{ v }}
{% set ns = namespace(count=0, last='') %}{% for m in messages %}{% set ns.count = ns.count + 1 %}{% set ns.last = m.role %}{% endfor %}{{ ns.count }} {{ ns.last }} {{ ns.missing }}|
{% set a, b = 1, 'z' %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }} {% set block %}hi {{ n }}{% endset %}[{{ block }}] {% set up | upper %}abc {{ n }}{% endset %}[{{ up }}] {% set tr | trim | replace('a', 'b') %} a {% endset %}[{{ tr }}]
{% set nested.x = 1 %}
{% set a, b = [1] %}
{% for a, b in [[1]] %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% macro m(a, b=2, c='x' ~ b) %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=5) }} {{ m(b=1, a=0) }} {{ m() }} {{ m(1) | upper }} {{ m('q') ~ m('r') }}
{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }} {% macro w(d, i=0) %}{% for k, v in d.items() %}{{ ' ' * i }}{{ k }}{% if v is mapping %}>{{ w(v, i + 1) }}{% endif %};{% endfor %}{% endmacro %}{{ w({'a': {'b': {'c': 1}}, 'd': 2}) }}
{% set g = 1 %}{% macro show() %}{{ g }}{{ n }}{{ loop is defined }}{% endmacro %}{% set g = 2 %}{{ show() }} {% for n in [5] %}{{ show() }}{% endfor %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=2) }}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}| {% filter upper %}abc {{ items[0] }}{% endfilter %} {% raw %}{{ not }} {% this %}{% endraw %} {# comment {{ x }} #}done
{% generation %}answer {{ n }}{% set inside = 1 %}{% endgeneration %}{{ inside }}|
{{ raise_exception('roles must alternate') }}
{{ strftime_now('%Y') | length }}
{% if n == 1 %}a{% elif n == 7 %}b{% elif true %}c{% else %}d{% endif %} {% if [] %}x{% else %}y{% endif %} {% if n == 7 and not false %}z{% endif %} {% if missing %}q{% endif %}
{% if (messages[0]['role'] == 'user') != (0 % 2 == 0) %}odd{% else %}even{% endif %}
{{ {'a': 1}['a'] }} {{ {'a': {'b': 2}}.a.b }} {{ [[1, 2], [3]][0][1] }} {{ {'x': 1}.items() | list }} {{ [1, 2,] }} {{ {'a': 1,} }}
{{ items | nosuchfilter }}
{{ 1 is nosuchtest }}
{{ 'a' if }}
{% if x %}
{% for x in %}{% endfor %}
{{ (1 + 2 }}
{{ 'unclosed }}
{% endif %}
{% unknown %}
{{ a b }}
{# unclosed
{{ 1 | }}
{% set 1 = 2 %}
{{ }}
{{ messages[0].content.strip().split('.')[0] | upper }} {{ messages[1].content[:4] }} {{ (messages | last).content | trim ~ '!' }} {{ messages[2].content.split('</think>')[-1].lstrip('\n') }}
{{ '%s' | length }} {{ 'a.b'.split('.')[1] }} {{ 'x' ~ ('y' if true else 'z') ~ '!' }} {{ [1, 2][0] if true }} {{ (items | length) > 2 }}
{{ 'abc' in ['abc'] and 'b' in 'abc' }} {{ 'a' ~ 'b' == 'ab' }} {{ 1 + 1 == 2 and 2 * 2 == 4 }} {{ 10 - 2 - 3 }} {{ 2 ** 3 ** 2 }} {{ 100 / 10 / 2 }}
{{ nested is mapping and nested.t }} {{ items | map('length') | list }} {{ items | map('replace', 'a', 'Q') | list }} {{ [['a', 1]] | list }} {{ 'A' | lower ~ 'B' }}
{{ messages | selectattr('role', 'eq', 'user') | list | length }} {{ messages | groupby_none if false else 'ok' }}
{{ '%s' % 'a' }} {{ '%s and %s' % ('a', 1) }} {{ '%s' % 1.5 }} {{ '%s' % none }} {{ '%s' % [1, 'x'] }} {{ '%s' % (('t', 2),) }} {{ '%s %s' % (true, missing) }}|
{{ '%d' % 3 }} {{ '%d' % 3.9 }} {{ '%5d|%-5d|%05d|%+d|% d|%+5d' % (1, 2, 3, 4, 5, 6) }} {{ '%d' % -7 }} {{ '%05d' % -7 }} {{ '%.3d' % 5 }} {{ '%i%u' % (1, 2) }} {{ '%d' % true }}
{{ '%.2f' % 3.14159 }} {{ '%f' % 1 }} {{ '%8.3f|%-8.1f|%08.2f' % (1.5, 2.25, 3.125) }} {{ '%e' % 12345.678 }} {{ '%.1E' % 0.00012 }} {{ '%g %g %g' % (1e10, 0.0001, 123456789) }} {{ '%G' % 1e-10 }} {{ '%.0f' % 2.5 }} {{ '%+.1f' % -0.05 }}
{{ '%x %X %o %#x %#o %#X' % (255, 255, 8, 255, 8, 255) }} {{ '%c%c' % (65, 'é') }} {{ '%%' % () }} {{ '100%% of %s' % 'x' }} {{ '%5s|%-5s|%.2s|%5.1s' % ('ab', 'cd', 'héllo', 'xyz') }} {{ '%r %r' % ('it', 1.0) }} {{ '%*d|%-*s|%.*f' % (5, 1, 4, 'a', 1, 2.25) }}
{{ '%(a)s-%(b)03d' % {'a': 'x', 'b': 7} }} {{ '%(k)s' % nested }} {{ 'none' % {} }} {{ 'none' % [] }} {{ '%s' | format('x') }} {{ '%s %d' | format('x', 3) }} {{ '%(a)s' | format(a=2) }} {{ '%-10s|' % 'é' }} {{ '%05s' % 'a' }}
{{ '%s %s' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ 'none' % 1 }}
{{ '%d' % 'x' }}
{{ '%q' % 1 }}
{{ '%' % 1 }}
{{ '%(zzz)s' % {'a': 1} }}
{{ '%(a' % {'a': 1} }}
{{ '%x' % 1.5 }}
{{ '%f' % 'a' }}
{{ '%c' % 'ab' }}
{{ 'AbC'.isupper() }} {{ 'ABC1'.isupper() }} {{ 'abc-'.islower() }} {{ '12'.islower() }} {{ 'a1'.isalnum() }} {{ 'a 1'.isalnum() }} {{ ''.isalnum() }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'kv'.partition('=') }} {{ 'kv'.rpartition('=') }}
{{ '<a href="x">it\'s & so</a>' | escape }} {{ '<' | e }} {{ nested | attr('items') is callable }} {{ nested | attr('k') is defined }} {{ 5 | escape }}
{{ text.split('')[0] }}
{{ 'a'.partition('') }}
{% for m in messages if m.role != 'system' and m.content %}{{ loop.index }}{{ '*' if loop.last }}{{ m.role[0] }}{% else %}none{% endfor %} {% for m in messages if m.role == 'tool' %}x{% else %}no tools{% endfor %}
{% for a in [1, 2] %}{% for b in [3, 4] %}{{ loop.index }}{{ a }}{{ b }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}{{ loop.index }}{% endfor %}
{% for k, v in nested | dictsort %}{{ k }}:{{ v }}{{ ', ' if not loop.last }}{% endfor %} {% for k, v in {'x': 1, 'y': 2} | items %}{{ k ~ v }}{% endfor %} {% for pair in {'x': 1}.items() %}{{ pair[0] }}{{ pair }}{% endfor %}
{% macro opt(a, b=none, c=[]) %}{{ a }}{{ b is none }}{{ c | length }}{% endmacro %}{{ opt(1) }} {{ opt(1, 2, [3]) }} {{ opt(c='xyz', a=0) }} {% macro outer() %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer() }}
{% macro tree(node, depth=0) %}{{ '-' * depth }}{{ node.name }};{% for child in node.children | default([]) %}{{ tree(child, depth + 1) }}{% endfor %}{% endmacro %}{{ tree({'name': 'a', 'children': [{'name': 'b', 'children': [{'name': 'c'}]}, {'name': 'd'}]}) }}
{% macro m(x) -%} {{ x | trim }} {%- endmacro %}[{{ m('  a  ') }}] {% set f = m %}[{{ f('b') }}] {{ m is defined }} {{ m is callable }} {{ nope is defined }}
{% set ns = namespace(found=false, items=[]) %}{% for m in messages %}{% if m.role == 'user' and not ns.found %}{% set ns.found = true %}{% set ns.items = ns.items + [m.content] %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.items | length }} {{ ns.items[0] }}
{% set x = 5 %}{% if true %}{% set x = 6 %}{% endif %}{{ x }} {% for i in [1] %}{% set x = 7 %}{{ x }}{% endfor %}{{ x }} {% set y %}{% for i in [1, 2] %}{{ i }},{% endfor %}{% endset %}{{ y | length }}{{ y }}
{% set a = [1, 2] + [3] %}{{ a[-1] }}{{ a[:2] }}{{ a[::2] }}{{ a[1:][0] }}{{ (a | length) * 2 }} {% set d = dict(a=1) if true else {'a': 2} %}{{ d.a }} {{ [[1, 2], [3, 4]] | map('first') | list }} {{ [[1, 2], [3, 4]] | map('last') | sum }}
{{ messages | map(attribute='content') | map('length') | list }} {{ messages | map('attr', 'role') | list }} {{ messages | selectattr('content') | list | length }} {{ [0, 1, 2] | reject('odd') | list }} {{ [1, 'a', none] | select('string') | list }} {{ ['x', 'y'] | map('upper') | join('') }}
{{ messages | selectattr('role', 'in', ['user']) | map(attribute='content') | first }} {{ (messages | selectattr('role', 'equalto', 'nobody') | list) or 'nobody' }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | unique | list }} {{ messages | map(attribute='nope') | select('defined') | list }}
{{ {'a': [1, {'b': none}], 'c': 'é"'} | tojson }} {{ {'a': [1, {'b': none}]} | tojson(indent=2) }} {{ 'é' | tojson(ensure_ascii=true) }} {{ {'z': 1, 'a': [1, 2]} | tojson(indent=1, separators=(',', ' : '), sort_keys=true) }} {{ 1.0 | tojson }} {{ '</script>&\'' | tojson }} {{ [] | tojson(indent=2) }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d') | length }} {{ strftime_now('%A, %B %d, %Y') }} {{ strftime_now('%H') | int >= 0 }} {{ strftime_now('%%') }}
{{ raise_exception('After the optional system message, roles must alternate') if messages[0].role != 'system' else 'fine' }} {{ 'ok' if messages | length >= 1 else raise_exception('none') }}
{{ (messages[1:] if messages[0]['role'] == 'system' else messages) | length }} {{ messages[0]['content'] if messages[0]['role'] == 'system' else 'default' }} {{ messages[-1:] | map(attribute='role') | list }} {{ messages[::-1][0].content }} {{ messages[1:-1] | length }} {{ (messages | length - 1) }}
{{ messages[2].content.split('</think>')[-1].lstrip('\n') }} {{ messages[2].content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }} {{ '</think>' in messages[2].content }} {{ messages[2].tool_calls or 'no calls' }} {{ messages[2].get('reasoning', 'none') }}
{{ n is number and n > 3 or n is string }} {{ not (n > 3) }} {{ 1 if n % 2 else 0 }} {{ n // 2 * 2 + n % 2 == n }} {{ -n ** 2 }} {{ (1, 2) + (3,) }} {{ 'a' < 'b' and 'b' < 'c' }} {{ 3 > 2 > 1 }} {{ 'x' * n }} {{ n ~ '' is string }}
{{ items is iterable and items is not mapping and items is not string }} {{ nested is mapping }} {{ 'abc' is iterable }} {{ missing is iterable }} {{ messages[0].content is string }} {{ none is none and missing is not none }} {{ missing is none }} {{ false is boolean }} {{ 0 is false }} {{ tools is none }} {{ x is not integer }}
{{ missing or 'fallback' }} {{ missing | default('d') | upper }} {{ nested.zip | default(nested.name) }} {{ (missing | default({})).x is undefined }} {{ nested.get('zip', {}).get('x', 'deep') }} {{ missing is defined and missing.x }} {{ missing == missing2 }} {{ missing | length }} {{ missing | join }}|
{{ missing.x.y }}
{{ nested.zip.zap }}
{{ messages[9].content }}
{{ none.x }}| {{ none['x'] }}|
{{ none | items | list }}
{{ [1, 2] | items | list }}
{{ 'abc' | map('upper') | list }} {{ 'abc' | list | reverse | join }} {{ [3, 1, 2] | sort | first }} {{ [1, 2, 3] | max - [1, 2, 3] | min }} {{ 'a-b_c' | replace('-', ' ') | title }} {{ '  x ' | trim | length }} {{ 'x,y' | upper ~ '!' }} {{ ['a', 'b'] | join(', ') | length }}
{{ 'line1\nline2' | indent(4) }} {{ 'l1\nl2' | indent(width=2, first=true) }} {{ 'a\nb'.splitlines() | join('|') }} {{ ('x' ~ '\n' ~ 'y').split('\n') }} {{ 'tab\tx' }} {{ "quote \" in" }} {{ 'uni \u00e9 \U0001F600' }} {{ '\\n' }}
{% if messages is defined and messages is iterable and messages | length > 0 and messages[0].role == 'system' %}{% set sys = messages[0].content | trim %}{% else %}{% set sys = none %}{% endif %}{{ sys }} {% if not sys is none %}has{% endif %} {% if sys is not none and sys != '' %}!{% endif %}
{% for i in range(3) %}{% for j in range(3) %}{% if j > i %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% if i == 1 %}{% continue %}{% endif %}; {% endfor %} {% for i in range(0, 10, 3) %}{{ i }}{% endfor %} {% for c in 'añ' %}[{{ c }}]{% endfor %}
{%- for m in messages %}{%- if loop.previtem is defined and loop.previtem.role == m.role %}={% endif %}{%- if loop.nextitem is defined %}{{ loop.nextitem.role[0] }}{%- else %}.{%- endif %}{%- endfor %} {% for i in [] %}{% else %}{% for j in [1] %}{{ j }}{% endfor %}{% endfor %}
{% with %}{% set inner = 1 %}{{ inner }}{% endwith %}{{ inner is defined }} {% with a = 1, b = 2 %}{{ a + b }}{% endwith %} {% filter trim %}  padded  {% endfilter %}| {% set t | upper | trim %} up {% endset %}[{{ t }}] {% generation %}{% for i in [1] %}g{{ i }}{% endfor %}{% endgeneration %}
{# a {% comment %} {{ x }} #}{% raw %}{% if %}{{ raw }}{% endraw %}{{ '{{' }}{{ "{%" }}{{ '#}' }} {{ 'a' if true }}{{ 'b' if false }}{{ ('c' if false) or 'd' }} {{ {'k': 'v'}['k'] }} {{ {'k': {'j': [1]}}.k.j[0] }}
{{ 'a' 'b' ~ 'c' }} {{ [1, [2, [3]]] }} {{ {'a': (1,), 'b': {}} }} {{ ((1)) }} {{ (1,) }} {{ [] }} {{ {} }} {{ 1_000 + 1 }} {{ 1.5e3 }} {{ 0.5 }}
{{ [1, 2, 3][-2:] }} {{ 'hello'[1:-1] }} {{ 'hello'[-3:] }} {{ 'hello'[::-2] }} {{ 'hello'[99:] }}| {{ [1, 2, 3][5:] }} {{ (1, 2, 3)[::-1] }} {{ 'héllo wörld'[4:8] }} {{ messages[0:1][0].role }}
{{ namespace is defined }} {{ range is defined }} {{ raise_exception is defined }} {{ strftime_now is defined }} {{ loop is defined }}
""".strip("\n").split("\n")

# White space: each source is rendered as it stands.
LAYOUTS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}  \n  b\n  {% endif %}  \nc",
    "a  {%- if true -%}  b  {%- endif -%}  c",
    "  {% if true %}x{% endif %}\n  {{ n }}\n",
    "x {% if true %} y {% endif %} z\n\n",
    "\n\n{% set a = 1 %}\n\n{{ a }}\n\n",
    "{#- c -#}  a  {#- d #}\nb {# e #}\n  {# f #}\nc",
    "a {{- n -}} b {{ n -}}\n\n c {{- n }}",
    "  {%+ if true %}a{% endif %}\n  {%+ if true +%}\nb{% endif +%}\nc",
    "{% for i in [1, 2] %}\n  - {{ i }}\n{% endfor %}\nend",
    "{%- for i in [1, 2] -%}\n  - {{ i }}\n{%- endfor -%}\nend",
    "\t{% if true %}\n\ta\n\t{% endif %}\t\n",
    "a\r\n{% if true %}\r\nb{% endif %}\r\n",
    "{% raw %}\n {{ x }} \n{% endraw %}\nz",
    "a {%- raw -%} {{ x }} {%- endraw -%} z",
    "{{ '}}' }}{{ {'a': {'b': 1}} }}{{ '{%' }}{% set d = {'a': {'b': {}}} %}{{ d }}",
    "{{n}}{{-n}}{{n-}} x{%if n%}y{%endif%}",
    "{ % } {{ '{' }} } # {",
    "a\n    {{- '\\n' }}\n    b",
    "{% if true %}{# c #}\n{% endif %}\nx\n   {# d #}   \ny",
    "\u00a0{% if true %}a{% endif %}\u2003{%- if true %}\u3000{%- endif %}b",
    "line\n {% set x = 1 %} {% set y = 2 %}\nnext",
    "{# multi\nline\n#}\n{{ n }}{# \u4f60\u597d \u00e9 #}\n",
    "a{% if true %}\n\n\nb{% endif %}",
    "  {{ n }}  \n  {% if n %}  {% endif %}  {{ n }}",
]

CHATML_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning is defined and message.reasoning is not none %}
            {%- set thought = message.reasoning %}
        {%- elif '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set thought = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

TYPES_MACRO = """{%- macro describe(schema, indent=0) -%}
{%- if schema.type == 'object' -%}
{
{%- for name, part in schema.properties | dictsort %}
{{ '  ' * (indent + 1) }}{{ name }}: {{ describe(part, indent + 1) }}{{ ',' if not loop.last }}
{%- endfor %}
{{ '  ' * indent }}}
{%- elif schema.type is iterable and schema.type is not string -%}
{{ schema.type | join(' | ') }}
{%- else -%}
{{ schema.type }}
{%- endif -%}
{%- endmacro -%}
{% for tool in tools %}{{ tool.function.name }}({{ describe(tool.function.parameters) }}) // {{ tool.function.description | trim }}
{% endfor %}"""

ALTERNATING = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/...') }}
{% endif %}
{% if loop.first and system %}<<{{ system }}>>
{% endif %}
{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

TOOL_MESSAGES = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning": "call it",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"z": "B\u00e4r", "a": 1}}}],
    },
    {"role": "tool", "content": '{"sun": true}'},
    {"role": "tool", "content": "20\u00b0"},
    {"role": "assistant", "content": "Sunny."},
]


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: a block in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)
    return env


def case(source, context):
    try:
        return {"source": source, "context": context, "output": environment().from_string(source).render(**context)}
    except Exception as error:  # the kind does not matter: an error is expected from us too
        return {"source": source, "context": context, "error": str(error)}


def goldens(smollm2_template):
    cases = [case(source, CONTEXT) for source in SNIPPETS + LAYOUTS]
    assert len(SNIPPETS + LAYOUTS) > 180
    for messages in (MESSAGES, MESSAGES[1:], TOOL_MESSAGES):
        for tools in (None, TOOLS):
            for more in ({}, {"enable_thinking": False}, {"add_generation_prompt": False}):
                context = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
                context |= {"bos_token": "<s>", "eos_token": "</s>"} | more
                cases.append(case(CHATML_TOOLS, context))
                cases.append(case(ALTERNATING, context))
                cases.append(case(smollm2_template, context))
                cases.append(case(TYPES_MACRO, context))
    return packed(cases)


def model_goldens(qwen_template):
    """Templates in the manner of released models, and that of the model of the tests, with their conversations."""
    all_contexts = list(models.contexts())
    cases = [case(source, context) for source in models.MODELS + [qwen_template] for context in all_contexts]
    return packed(cases) | {"qwen": qwen_template}


def packed(cases):
    """Contexts and long sources repeat: each is stored once."""
    contexts, sources = [], []
    for item in cases:
        for name, pool in (("context", contexts), ("source", sources)):
            if item[name] not in pool:
                pool.append(item[name])
            item[name] = pool.index(item[name])
    return {"now": NOW, "contexts": contexts, "sources": sources, "cases": cases}
